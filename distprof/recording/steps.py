"""Decides when a step ends, by optimizer steps, forward calls of root modules and explicit calls."""

from __future__ import annotations

import gc

from torch.optim import Optimizer

from distprof.model.modules import Site


class StepFinder:
    """Decides what ends a step in this script.

    An explicit `rec.step()` wins. Else the optimizer does; of several that step in turn, the last. Where no
    optimizer is alive, each forward call of the first root model with parameters begins a step.
    """

    def __init__(self) -> None:
        self.rule: str | None = None
        """"explicit", "optimizer", "forward", or None until it is known."""
        self._order: list[int] = []
        self._anchor: int | None = None
        self._forwards = 0
        self._root: Site | None = None
        self._optimizer_alive = False
        self._forward_since_end = False

    def after_optimizer(self, optimizer: Optimizer) -> bool:
        """True if this optimizer.step() ended a step."""
        if self.rule == "explicit":
            return False
        self.rule = "optimizer"
        if self._anchor is None and id(optimizer) in self._order:
            self._anchor = self._order[-1]  # the round is known now
        elif self._anchor is None:
            self._order.append(id(optimizer))
        ended = id(optimizer) == (self._anchor if self._anchor is not None else self._order[0])
        self._forward_since_end = self._forward_since_end and not ended
        return ended

    def before_root(self, site: Site) -> bool:
        """True if this forward call of a root module begins a new step."""
        self._forward_since_end = True
        if self.rule not in (None, "forward") or self._optimizer_alive or not site.model.has_parameters():
            return False
        if self._root is None:
            self._root = site
        if site is not self._root:
            return False
        self._forwards += 1
        if self.rule is None and self._forwards == 2:
            gc.collect()  # one that waits to be collected does not count
            self._optimizer_alive = any(Optimizer in type(thing).__mro__ for thing in gc.get_objects())
            self.rule = None if self._optimizer_alive else "forward"
        return self.rule == "forward"

    def explicit(self) -> bool:
        """True if an explicit call ends a step; the first one may follow an optimizer that just did."""
        first = self.rule != "explicit"
        self.rule = "explicit"
        ended = not first or self._forward_since_end or not self._order
        self._forward_since_end = False
        return ended

    def why_none(self, num_forwards: int) -> str:
        """Why no step was found, for the user."""
        if self._optimizer_alive or num_forwards:
            return f"found {num_forwards} forward calls and no optimizer.step()"
        return "found no forward call of a torch.nn.Module"
