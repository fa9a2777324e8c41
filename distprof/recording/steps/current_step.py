"""The running step: its number, its time, and the samples that its models were called with.

Also its time on the device, since the host's time means little if the host runs ahead of the device.
"""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from distprof.contract.passes import WAIT
from distprof.contract.tables import TableRow
from distprof.model.modules import Model, Site
from distprof.model.scopes import Frame
from distprof.model.tensors import first_tensor, num_elements, num_rows
from distprof.own import time
from distprof.recording.steps.evaluation import CallsWithoutGradient
from distprof.recording.steps.pattern import Waited
from distprof.timing.stopwatch import comes, recorded_event


class DeviceTimes:
    """Marks on the current stream where steps begin and end; they become times once the device has reached them."""

    def __init__(self) -> None:
        self._began: torch.Event | None = None
        self._ended: list[tuple[TableRow, torch.Event, torch.Event]] = []

    def begin(self) -> None:
        """Begins a step."""
        self._began = recorded_event()

    def end(self, row: TableRow) -> None:
        """Ends the step, whose row is given."""
        began, self._began = self._began, None
        end = recorded_event() if began is not None else None
        if began is not None and end is not None and began.device == end.device:
            self._ended.append((row, began, end))

    def settle(self) -> None:
        """Fills in `device_ns` of the rows; waits for the device, unless it hangs or has failed."""
        ended, self._ended = self._ended, []
        with suppress(RuntimeError):  # an error of the script, which torch raises again
            for row, began, end in ended:
                if not comes(end):
                    return
                row["device_ns"] = round(began.elapsed_time(end) * 1e6)


class CurrentStep:
    """Counts steps from 0. While it listens to the modules, it also counts forward calls and samples."""

    def __init__(self, calls: CallsWithoutGradient) -> None:
        """Begins before the first step; `calls` tells which calls without gradients are evaluation."""
        self._calls = calls
        self._without_gradient: Counter[Site] = Counter()
        self._doubtful: list[_Doubtful] = []
        self.number = 0
        self.num_turns = 0
        """Number of optimizer steps that were examined to find out what ends a step."""
        self.began_ns = 0
        """Start of the step in ns since the epoch; 0 before the first step."""
        self.forward_calls: int | None = None
        """Calls of root modules with parameters in this step, except evaluation; None while it does not listen."""
        self.all_forward_calls = 0
        """Such calls in all steps, including evaluation."""
        self._evaluation_calls: int | None = None
        self._samples: dict[Model, _Samples] = {}
        self._began_counter_ns = 0
        self.device_times = DeviceTimes()

    def start_over(self) -> None:
        """Counts from 0 again."""
        self.number = self.num_turns = self.all_forward_calls = 0
        self._doubtful, self.device_times = [], DeviceTimes()
        self._calls.start_over()

    def begin(self, *, listening: bool) -> None:
        """Begins the step."""
        self.forward_calls = self._evaluation_calls = 0 if listening else None
        self._without_gradient = Counter()
        self._samples = {}
        self.restart()

    def restart(self) -> None:
        """Moves the start of the step to now."""
        self.device_times.begin()
        self.began_ns, self._began_counter_ns = time.time_ns(), time.perf_counter_ns()

    def duration_ns(self) -> int:
        """Returns the time since the step began, by a clock that is never set."""
        return time.perf_counter_ns() - self._began_counter_ns

    def end(self, pass_name: str, duration_ns: int) -> TableRow:
        """Ends the step and returns its row of steps.parquet.

        The numbers of calls in the row may change when later steps end.
        """
        # models that work on the same samples, or chunks of one model on a rank, do not add up
        most = max(self._samples.values(), key=lambda one: one.number, default=_Samples())
        row = {"step": self.number, "pass": pass_name, "start_ns": self.began_ns,
               "end_ns": self.began_ns + duration_ns, "duration_ns": duration_ns,
               "forward_calls": self.forward_calls, "evaluation_calls": self._evaluation_calls,
               "samples": most.number or None, "elements": most.elements or None}
        self.device_times.end(row)
        if self.forward_calls is not None:
            self._calls.step_ended(self.number)
            if self._without_gradient:
                self._doubtful.append(_Doubtful(row, self.forward_calls, self._evaluation_calls or 0,
                                                self._without_gradient))
            for doubtful in self._doubtful:
                doubtful.settle(self._calls)
        self.number += 1
        return row

    def end_waited(self, step: Waited) -> TableRow:
        """Returns the row of a step that had ended before it was known what ends a step."""
        row = {"step": self.number, "pass": WAIT, "start_ns": step.start_ns,
               "end_ns": step.start_ns + step.duration_ns, "duration_ns": step.duration_ns,
               "forward_calls": None, "evaluation_calls": None, "samples": None, "elements": None}
        self._calls.step_ended(0)  # calls seen by then cannot be assigned to single steps
        self.number += 1
        return row

    def enter(self, frame: Frame) -> None:
        """Does nothing: calls are counted when they return."""

    def exit(self, frame: Frame, args: Any, kwargs: Any, _result: Any) -> None:
        """Counts root calls and the samples passed to them."""
        model = frame.site.model
        if not (frame.is_root and model.has_parameters()):
            return
        self.all_forward_calls += 1
        if frame.without_gradient is not None:
            self._without_gradient[frame.without_gradient] += 1
            if frame.evaluation or not torch.is_grad_enabled():
                return
        elif frame.evaluation:
            self._evaluation_calls = (self._evaluation_calls or 0) + 1
            return
        else:
            self.forward_calls = (self.forward_calls or 0) + 1
        self._samples.setdefault(model, _Samples()).add(first_tensor(args, kwargs))


@dataclass(slots=True, frozen=True)
class _Doubtful:
    """A step with calls without gradients."""

    row: TableRow
    forward_calls: int
    """All other forward calls."""
    evaluation_calls: int
    without_gradient: Counter[Site]

    def settle(self, calls: CallsWithoutGradient) -> None:
        """Sets the numbers of calls in the row, as far as they are known by now."""
        work = sum(number for site, number in self.without_gradient.items() if calls.are_work(site))
        self.row["forward_calls"] = self.forward_calls + work
        self.row["evaluation_calls"] = self.evaluation_calls + self.without_gradient.total() - work


class _Samples:
    """Samples passed to one model in a step, and the number of elements of their tensors."""

    def __init__(self) -> None:
        self.number = self.elements = 0
        self._seen: dict[int, Any] = {}

    def add(self, tensor: Any) -> None:
        """Counts a tensor once: a closure may be called again with the same samples."""
        rows = num_rows(tensor)
        before = self._seen.get(id(tensor))
        if rows is None or (before is not None and before() is tensor):
            return
        self._seen[id(tensor)] = weakref.ref(tensor)  # the id of a dead tensor may be reused
        self.number += rows
        self.elements += num_elements(tensor)
