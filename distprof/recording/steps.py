"""Steps of a training script: what ends one, and the one that runs now."""

from __future__ import annotations

import gc
import time
from typing import Any

from torch.optim import Optimizer

from distprof.contract.tables import TableRow
from distprof.model.modules import Site
from distprof.model.scopes import Frame
from distprof.model.tensors import num_samples


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


class CurrentStep:
    """Counts steps from 0. It counts forward calls and samples while it listens to the modules."""

    def __init__(self) -> None:
        self.number = 0
        self.began_ns = 0
        """Since the epoch; 0 before the first step."""
        self.forward_calls: int | None = None
        """Of root modules with parameters in this step; None while it does not listen."""
        self.all_forward_calls = 0
        """Of all steps."""
        self._samples: int | None = None
        self._began_counter_ns = 0

    def begin(self, *, listening: bool) -> None:
        """The step begins."""
        self.forward_calls, self._samples = 0 if listening else None, None
        self.restart()

    def restart(self) -> None:
        """It begins only now."""
        self.began_ns, self._began_counter_ns = time.time_ns(), time.perf_counter_ns()

    def duration_ns(self) -> int:
        """Time since it began, by a clock that is never set."""
        return time.perf_counter_ns() - self._began_counter_ns

    def end(self, pass_name: str, duration_ns: int) -> TableRow:
        """Its row of steps.parquet; the next step has the next number."""
        row = {"step": self.number, "pass": pass_name, "start_ns": self.began_ns,
               "end_ns": self.began_ns + duration_ns, "duration_ns": duration_ns,
               "forward_calls": self.forward_calls, "samples": self._samples}
        self.number += 1
        return row

    def enter(self, frame: Frame) -> None:
        """Nothing to do: calls count when they return."""

    def exit(self, frame: Frame, args: Any, kwargs: Any, _result: Any) -> None:
        """Counts root calls and the samples that went into them."""
        if frame.is_root and frame.site.model.has_parameters():
            self.forward_calls = (self.forward_calls or 0) + 1
            self.all_forward_calls += 1
            samples = num_samples(args, kwargs)
            if samples is not None:
                self._samples = (self._samples or 0) + samples
