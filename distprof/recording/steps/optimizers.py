"""The optimizers of the script: which are alive, which have stepped, which are parts of others, and their names."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from distprof.contract.rank_json import OptimizerSteps
from distprof.model.modules import ModuleMap
from distprof.process.live_objects import live_instances


class KnownOptimizer:
    """One optimizer, by weak reference."""

    __slots__ = ("class_name", "name", "parameters", "ref")

    def __init__(self, optimizer: Optimizer) -> None:
        self.ref = weakref.ref(optimizer)
        self.class_name = self.name = type(optimizer).__name__
        """`name` is the displayed name: it includes the module that holds the optimizer's parameters, once that is
        known."""
        self.parameters = _parameters_of(optimizer)


class Optimizers:
    """Numbers optimizers in the order in which they first stepped, which is the same on all ranks."""

    def __init__(self, left_out: Iterable[Optimizer] = ()) -> None:
        """Begins with none.

        Args:
            left_out: Optimizers to ignore.
        """
        self._left_out = frozenset[int]().union(*map(_parameters_of, left_out))
        self.stepped: list[KnownOptimizer] = []
        self._numbers: dict[int, int] = {}
        """By id of the optimizer."""
        self._alive: Sequence[KnownOptimizer] | None = None

    def again(self) -> Optimizers:
        """Returns new ones that ignore the same optimizers."""
        found = Optimizers()
        found._left_out = self._left_out
        return found

    @property
    def were_looked_for(self) -> bool:
        """True once `look` was called."""
        return self._alive is not None

    @property
    def any(self) -> bool:
        """True if an optimizer is alive or has stepped."""
        return bool(self.stepped or self._alive)

    @property
    def several_alive(self) -> bool:
        """True if more than one is known to be alive."""
        return len(self._alive or ()) > 1

    def look(self) -> None:
        """Finds the optimizers that are alive."""
        self._alive = [one for one in _live() if not one.parameters <= self._left_out]

    def number(self, optimizer: Optimizer) -> int:
        """Returns the number of an optimizer that steps; it inherits the number of a dead one of its class."""
        number = self._numbers.get(id(optimizer))
        if number is None or self.stepped[number].ref() is not optimizer:
            known = KnownOptimizer(optimizer)
            number = next((number for number, one in enumerate(self.stepped)
                           if one.ref() is None and one.class_name == known.class_name), len(self.stepped))
            self.stepped[number:number + 1] = [known]
            self._numbers[id(optimizer)] = number
        return number

    def is_dead(self, number: int) -> bool:
        """True if the script has dropped the optimizer."""
        return self.stepped[number].ref() is None

    def silent(self) -> list[KnownOptimizer]:
        """Returns live optimizers with parameters that no optimizer that stepped has."""
        reached = frozenset[int]().union(*(one.parameters for one in self.stepped))
        if self._alive is None or not any(one.parameters <= other.parameters for one in self.stepped
                                          for other in self._alive):
            self.look()  # the script has created optimizers since
        return [one for one in self._alive or () if one.ref() is not None and not one.parameters <= reached]

    def described(self, steps: Mapping[int, int]) -> list[OptimizerSteps]:
        """Returns name and number of steps (given by optimizer number) of each of these optimizers."""
        return [OptimizerSteps(name=self.stepped[number].name, steps=times) for number, times in steps.items()]


def _parameters_of(optimizer: Any) -> frozenset[int]:
    """Returns the ids of its parameters; empty for a wrapper that has none of its own."""
    try:
        return frozenset(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    except Exception:  # noqa: BLE001 (an object that only looks like an optimizer)
        return frozenset()


def _live() -> list[KnownOptimizer]:
    """Returns optimizers that have parameters not covered by larger ones: wrappers share those of what they wrap."""
    found = live_optimizers()
    if len(found) > 1:
        del found
        gc.collect()  # one that only waits to be collected does not count
        found = live_optimizers()
    apart: list[KnownOptimizer] = []
    reached = set[int]()
    for one in sorted((KnownOptimizer(optimizer) for optimizer in found), key=lambda one: -len(one.parameters)):
        if not one.parameters <= reached:
            apart.append(one)
            reached |= one.parameters
    return apart


def live_optimizers() -> list[Optimizer]:
    """Returns all optimizers that are alive, including wrappers."""
    return live_instances(Optimizer)


def name_all(optimizers: Iterable[KnownOptimizer], modules: ModuleMap) -> None:
    """Names each after the module that holds its parameters, such as `Critic's Adam`, while both are alive."""
    for one in optimizers:
        if one.name == one.class_name and (owner := _owner(one.parameters, modules)) is not None:
            one.name = f"{owner}'s {one.class_name}"


def _owner(parameters: frozenset[int], modules: ModuleMap) -> str | None:
    """Returns the class of the root module, or the path of the deepest module in it, that has all these parameters."""
    for model in modules.models:
        root = model.root.module()
        if root is None or not parameters <= {id(parameter) for parameter in root.parameters()}:
            continue
        inside = [site for site in model.sites.values() if (module := site.module()) is not None
                  and parameters <= {id(parameter) for parameter in module.parameters()}]
        deepest = max(inside, key=lambda site: site.depth, default=model.root)
        return f"`{deepest.path}`" if deepest.depth else deepest.class_name
    return None
