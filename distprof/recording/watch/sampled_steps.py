"""Steps in which communication is labelled: chosen by number, alike on all ranks, and few enough to cost little."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.distributed as dist

from distprof.contract.watch import MOST_SPARSE, UNKNOWN, SampledStep
from distprof.model.scopes import Guard, ModuleScopes
from distprof.own import time
from distprof.process.accelerators import is_capturing
from distprof.recording.communication.c10d import RunningWorks
from distprof.recording.communication.collective_call import CollectiveCall
from distprof.recording.communication.labels import STOOD_STILL_NS, CollectiveRecorder
from distprof.recording.watch.device_marks import StepMarks, step_marks

EVERY_NS = 1_400_000_000
"""Time in ns between two sampled steps, if sampling costs little."""
LEAST_SPARSE = 3
"""Minimum of `exponent`: of long steps, 1 in 8 is sampled."""
MOST_COST, MOST_COST_NS, OF_LONG_STEPS = 0.0015, 60_000, 0.0003
"""Maximum fraction of the job's time, and maximum time in ns per step, that labelling may take on average; the second
does not count where it is less than the third, a fraction of a step."""
MOST_CALLS = 1024
"""A step with more calls is not logged: waits in calls that are not logged would count as the rank's own time. For a
similar reason, one with calls on several streams is not logged."""
FIRST_COST_NS = 3_000_000
"""Assumed cost of labelling a step in ns, before it has been measured."""
COST_OF_DISPATCH_NS = 25_000
"""Time in ns that the dispatcher needs to call Python for each labelled call, which is not measured."""


@dataclass(slots=True, kw_only=True)
class FoundSample:
    """A sampled step, with names instead of numbers."""

    step: SampledStep
    groups: list[tuple[str, list[int]]]
    """Group name and ranks of each call."""
    ops: list[str]


@dataclass(slots=True, kw_only=True)
class _Running:
    step: int
    start_ns: int
    cost_ns: int
    """Time in ns that it took to begin."""
    marks: StepMarks | None
    own_ns: int = 0
    """What the recorder's `own_ns` was then."""
    span_ns: int = 0
    """Duration of the step on the host."""
    ended: Any = None
    """Mark at the end of the step on the stream."""
    calls: list[CollectiveCall] = field(default_factory=list)
    num_calls: int = 0
    batches: int = 0
    """Number of batches of rows that have ended since."""


class SampledSteps:
    """Switches labelling on for a step, and off at its end."""

    MOST_BATCHES = 2
    """Number of batches of rows after which the end of communication is no longer waited for."""

    def __init__(self, scopes: ModuleScopes, step: Callable[[], int], guard: Guard) -> None:
        """Begins without samples."""
        self._recorder = CollectiveRecorder(scopes, lambda: (step(), None), RunningWorks(guard), guard)
        self._running: _Running | None = None
        self._ended: list[_Running] = []
        self._cost_ns = FIRST_COST_NS
        self._step_ns = 0.0
        self.exponent = MOST_SPARSE
        """1 in 2**exponent steps is sampled; in the first row hardly any."""

    def _exponent(self) -> int:
        by_time = max(LEAST_SPARSE, round(math.log2(max(1.0, EVERY_NS / self._step_ns))))
        allowed_ns = max(min(MOST_COST * self._step_ns, MOST_COST_NS), OF_LONG_STEPS * self._step_ns)
        by_cost = math.ceil(math.log2(max(1.0, self._cost_ns / allowed_ns)))
        return min(max(by_time, by_cost), MOST_SPARSE)

    @property
    def is_running(self) -> bool:
        """True in a step that is labelled."""
        return self._running is not None

    def rows_ended(self, span_ns: int, num_steps: int) -> list[FoundSample]:
        """Called when rows of `num_steps` steps have ended; returns complete samples."""
        mean = span_ns / num_steps
        self._step_ns = mean if not self._step_ns else self._step_ns + (mean - self._step_ns) / 4
        self.exponent = self._exponent()
        done: list[_Running] = []
        for one in self._ended:
            one.batches += 1
            if one.batches >= self.MOST_BATCHES or _is_over(one):
                done.append(one)
        self._ended = [one for one in self._ended if one not in done]
        return [_sample(one) for one in done if one.calls]

    def begin(self, step: int) -> None:
        """Begins to label a step; does nothing if there is no other rank to communicate with."""
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1) or is_capturing():
            return
        began = time.perf_counter_ns()
        marks = step_marks()
        self._running = _Running(step=step, start_ns=0, cost_ns=0, own_ns=self._recorder.own_ns, marks=marks)
        self._recorder.start(streams=marks, describes=False)
        self._running.start_ns, self._running.cost_ns = time.time_ns(), time.perf_counter_ns() - began

    def end(self, span_ns: int) -> None:
        """Ends the step, and its labelling if it is on."""
        running, self._running = self._running, None
        if running is None:
            return
        began = time.perf_counter_ns()
        running.ended = None if running.marks is None else running.marks.mark()
        self._recorder.stop(settles=False)
        num_calls = len(self._recorder.calls)
        tells = num_calls <= MOST_CALLS and not (running.marks is not None and running.marks.is_mixed)
        # nobody waits in a group of one
        calls = [call for call in self._recorder.calls if len(call.group_ranks) > 1] if tells else []
        running.span_ns, running.calls, running.num_calls = span_ns, calls, len(calls)
        self._recorder.forget()
        cost = (running.cost_ns + time.perf_counter_ns() - began + self._recorder.own_ns - running.own_ns
                + num_calls * COST_OF_DISPATCH_NS)
        self._cost_ns += (cost - self._cost_ns) // 4
        self._ended.append(running)

    def stop(self) -> list[FoundSample]:
        """Stops labelling; returns what is known of steps that have ended."""
        if self._running is not None:
            self._running = None
            self._recorder.stop(settles=False)
            self._recorder.forget()
        ended, self._ended = self._ended, []
        return [_sample(one) for one in ended if one.calls]


def _is_over(one: _Running) -> bool:
    """True if the ends of all calls are known, or never will be."""
    if one.marks is not None:
        try:
            return one.marks.are_over()
        except RuntimeError:
            return True
    return all(call.end_ns is not None or call.wait_end_ns is not None or call.over_by_ns is not None
               for call in one.calls)


def _sample(one: _Running) -> FoundSample:
    times = [_of_stream(one, call) if call.mark is not None else _of_host(one, call) for call in one.calls]
    span_ns, blocked = _span_ns(one), _apart(times)
    # of calls that the stream waited for at once, it is unknown how long each took; some ran beside other work
    took = [still if call.waits_for_several and call.mark is not None else time.took
            for call, time, still in zip(one.calls, times, blocked, strict=True)]
    for call in one.calls:
        call.mark = call.reached = call.waited = call.passed = None
    step = SampledStep(step=one.step, start_ns=one.start_ns, span_ns=span_ns, num_calls=one.num_calls, group=[],
                       op=[], arrived_ns=[time.arrived for time in times], took_ns=took, blocked_ns=blocked)
    return FoundSample(step=step, groups=[(call.group, call.group_ranks) for call in one.calls],
                       ops=[call.op for call in one.calls])


def _span_ns(one: _Running) -> int:
    """Returns the step's duration, on the stream if all calls are timed there: the host may run ahead of it."""
    if one.marks is not None and all(call.mark is not None for call in one.calls):
        with suppress(RuntimeError):
            if one.marks.are_over():
                return max(0, one.marks.resolve(one.ended))
    return one.span_ns


class _Times(NamedTuple):
    """Times of a call, in ns from the start of the step."""

    arrived: int
    took: int
    waits: tuple[int, int] | None
    """Start and end of the time in which the thread, or the stream, waited for it; None if unknown."""


def _apart(times: list[_Times]) -> list[int]:
    """Returns how long each call blocked; time spent waiting for several calls at once counts for only one of them."""
    blocked, until = [UNKNOWN] * len(times), 0
    for place, one in sorted(enumerate(times), key=lambda each: each[1].waits or (0, 0)):
        if one.waits is not None:
            begin, end = one.waits
            blocked[place], until = max(0, end - max(begin, until)), max(until, end)
    return blocked


def _of_host(one: _Running, call: CollectiveCall) -> _Times:
    ends = [end for end in (call.end_ns, None if call.waits_for_several else call.wait_end_ns, call.over_by_ns)
            if end is not None]
    waits = None
    if call.wait_start_ns is not None and call.wait_end_ns is not None:
        over_ns = min(call.wait_end_ns, *ends) if ends else call.wait_end_ns
        waits = call.wait_start_ns - one.start_ns, max(call.wait_start_ns, over_ns) - one.start_ns
    return _Times(max(0, call.enqueue_ns - one.start_ns), max(0, min(ends) - call.enqueue_ns) if ends else UNKNOWN,
                  waits)


def _of_stream(one: _Running, call: CollectiveCall) -> _Times:
    """Returns the times of a call on the stream; unknown if the stream has not reached all marks."""
    marks, arrived, took, waits = one.marks, UNKNOWN, UNKNOWN, None
    assert marks is not None
    with suppress(RuntimeError):
        if not marks.are_over():
            return _Times(UNKNOWN, UNKNOWN, None)
        reached = marks.resolve(call.reached)
        arrived = max(0, reached)
        waited, passed = waits = marks.resolve(call.waited), marks.resolve(call.passed)
        if passed - waited > STOOD_STILL_NS:  # otherwise it was over at some earlier time
            took = max(0, passed - reached)
    return _Times(arrived, took, waits)
