"""What is measured between the start and the end of a profile: calls and parameters of each module."""

from __future__ import annotations

import re
import weakref
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial

from torch import nn

from distprof.compat.deepspeed.forward_record import ForwardRecord
from distprof.compat.deepspeed.repeated_calls import RepeatedCalls
from distprof.errors import UsageError
from distprof.reporters.deepspeed_layout import ModuleProfile

HINT = "call this after start_profile and before end_profile"
EXPERT_GROUP = re.compile(r"ep_size_(\d+)")
"""DeepSpeed's name of an expert parameter's process group, with the number of its ranks."""


def types_of(given: Iterable[type] | type | None, name: str) -> frozenset[type]:
    """Returns the types that a caller gave, as an iterable or as a single type.

    Raises:
        UsageError: Something other than types was given.
    """
    if given is None:
        return frozenset()
    kinds = (given,) if isinstance(given, type) or not isinstance(given, Iterable) else tuple(given)
    wrong = [kind for kind in kinds if not isinstance(kind, type)]
    if wrong:
        raise UsageError(f"{name} must contain module types, not {type(wrong[0]).__name__}",
                         hint=f"{name}=[torch.nn.Linear]")
    return frozenset(kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCounts:
    """Parameters of one module, including submodules."""

    plain: int = 0
    expert: int = 0
    """Parameters of experts on this rank."""
    all_experts: int = 0
    """Parameters of experts on all ranks of their groups."""

    @classmethod
    def of(cls, module: nn.Module, *, logical: bool) -> ParamCounts:
        """Counts the parameters of a module; with `logical`, those that ZeRO-3 has partitioned count with their full
        size."""
        plain = expert = all_experts = 0
        for parameter in module.parameters():
            size = int(getattr(parameter, "ds_numel", parameter.numel()) if logical else parameter.numel())
            group = EXPERT_GROUP.fullmatch(getattr(parameter, "group_name", ""))
            ranks = int(group[1]) if group else 0
            plain += 0 if ranks else size
            expert += size if ranks else 0
            all_experts += size * ranks
        return cls(plain=plain, expert=expert, all_experts=all_experts)


class Measurement:
    """Forward calls and parameters of one model.

    Args:
        model: The model; `get_module_flops` and similar functions find its modules while this object is alive.
        ignored: Exact types of modules whose work counts as that of the enclosing module.
        exact: Whether to count like DeepSpeed, including its bugs.
    """

    def __init__(self, model: nn.Module, *, ignored: Collection[type], exact: bool) -> None:
        self.model = model
        self.exact = exact
        self._new_record = partial(ForwardRecord, model, ignored=ignored, exact=exact)
        self.record = self._new_record()
        self.calls = RepeatedCalls(model, self.record, self._new_record)
        self.params: dict[int, ParamCounts] = {}
        """id of a module -> its parameters."""
        self.reset()

    def reset(self) -> None:
        """Forgets all calls, and counts the parameters again."""
        self.record.clear()
        self.calls.records.clear()
        self.params = {id(module): ParamCounts.of(module, logical=not self.exact) for module in self.model.modules()}
        _LIVING.update(dict.fromkeys(self.params, self))

    def profiles(self) -> dict[int, ModuleProfile]:
        """Returns work and time so far of all modules, by id; those of a shared module include all its calls."""
        return self._profiles(self.model.modules())

    def profile_of(self, module: nn.Module) -> ModuleProfile:
        """Returns work and time so far of one module."""
        return self._profiles([module])[id(module)]

    def _profiles(self, modules: Iterable[nn.Module]) -> dict[int, ModuleProfile]:
        records = [self.record, *self.calls.records]
        amounts = [record.amounts() for record in records]
        seconds: dict[int, float] = defaultdict(float)
        for record in records:
            for key, taken in record.seconds().items():
                seconds[key] += taken

        def duration(module: nn.Module) -> float:
            return seconds.get(id(module)) or sum(map(duration, module.children()))

        found = {}
        for module in modules:
            work = [one[id(below)] for below in module.modules() for one in amounts if id(below) in one]
            params = self.params.get(id(module), ParamCounts())
            found[id(module)] = ModuleProfile(
                params=params.plain + params.expert, flops=sum(flops for flops, _ in work),
                macs=sum(macs for _, macs in work), seconds=duration(module))
        return found


_LIVING: weakref.WeakValueDictionary[int, Measurement] = weakref.WeakValueDictionary()
"""id of a module -> its latest measurement."""


def _profile_of(module: nn.Module) -> ModuleProfile:
    measurement = _LIVING.get(id(module))
    if measurement is None or not any(sub is module for sub in measurement.model.modules()):
        raise UsageError(f"this {type(module).__name__} is not part of a model that is being profiled",
                         hint=HINT)
    return measurement.profile_of(module)


def get_module_flops(module: nn.Module) -> int:
    """Returns the FLOPs of a module of a model that is being profiled, including submodules.

    Raises:
        UsageError: No profile has this module. This applies to the other functions too.
    """
    return _profile_of(module).flops


def get_module_macs(module: nn.Module) -> int:
    """Returns the multiply-accumulates of a module, including submodules."""
    return _profile_of(module).macs


def get_module_duration(module: nn.Module) -> float:
    """Returns the seconds of a module; those of its children if it was not called itself, like a ModuleList."""
    return _profile_of(module).seconds
