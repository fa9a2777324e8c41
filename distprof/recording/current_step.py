"""The step that runs now: its number, when it began, and the forward calls of root modules in it."""

from __future__ import annotations

import time
from typing import Any

from distprof.contract.columns import TableRow
from distprof.model.scopes import Frame
from distprof.model.tensors import num_samples


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
