"""Times on a device are read when it has come to them, and nothing waits: the device here is made up."""

from __future__ import annotations

import threading
import time
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import distprof
from distprof.contract.watch import UNKNOWN
from distprof.recording.communication.collective_call import CollectiveCall, note_begin, note_wait
from distprof.recording.watch import device_marks, phase_marks, rows, sampled_steps
from distprof.recording.watch.device_marks import PHASES, DeviceMarks, StepMarks
from distprof.timing import stopwatch
from support.watched import noted


class MadeUpEvent:
    """An event of a device that comes to it at a time of its own clock, ms."""

    clock_ms: ClassVar[float] = 0.0
    """How far the device has come."""
    queue_ms: ClassVar[float] = 0.0
    """When it will have done what it was given."""
    asked: ClassVar[list[str]] = []
    device = torch.device("cuda", 0)

    def __init__(self, *_: object, **__: object) -> None:
        self.at_ms = 0.0

    def record(self) -> None:
        self.at_ms = MadeUpEvent.queue_ms

    def query(self) -> bool:
        return MadeUpEvent.clock_ms >= self.at_ms

    def elapsed_time(self, other: MadeUpEvent) -> float:
        assert self.query() and other.query(), "torch would raise"
        return other.at_ms - self.at_ms

    def synchronize(self) -> None:
        raise AssertionError("it was waited for")

    wait = synchronize


@pytest.fixture
def device(monkeypatch):
    for module in device_marks, phase_marks, stopwatch:
        monkeypatch.setattr(module, "device_type", lambda: "cuda")
    monkeypatch.setattr(torch, "Event", MadeUpEvent)
    MadeUpEvent.clock_ms = MadeUpEvent.queue_ms = 0.0
    return MadeUpEvent


def row(first: int) -> dict[str, int]:
    return {"first_step": first, "num_steps": 4, "span_ns": 40_000_000, "device_ns": UNKNOWN}


def timed(first: int, device_ms: int = -1) -> dict[str, int]:
    """The same with what is known of a device; no step of it is marked."""
    unknown = dict.fromkeys(PHASES, UNKNOWN)
    return row(first) | unknown | ({"device_ns": device_ms * 1_000_000} if device_ms >= 0 else {})


def ended(marks: DeviceMarks, row: dict[str, int]) -> None:
    """Ends a row."""
    marks.end([(row, rows.RowEnd(0, 0, 0, None, 0, False, marks.cut()))])


def test_events_are_freed_by_the_thread_that_recorded_them(device, monkeypatch):
    """On another one, CUDA would create a context on its first device."""
    freed: list[threading.Thread] = []
    monkeypatch.setattr(device, "__del__", lambda _: freed.append(threading.current_thread()), raising=False)
    monkeypatch.setattr(device_marks, "PATIENCE_NS", 0)
    marks, taken = DeviceMarks(), rows.Rows(rows.GarbageTime())
    marks.begin()
    taken.begin(0)

    def write() -> None:
        marks.end(taken.taken(lambda number, _: [(10**7,) * 5] * number, measures=False))
        assert len(marks.overdue()) == 3

    for first in (0, 3):
        for number in range(first + 1, first + 4):
            device.queue_ms += 10.0
            taken.end(number, marks.cut, is_inference=False)
        writer = threading.Thread(target=write)
        writer.start()
        writer.join()
        marks.settled()
    assert set(freed) == {threading.current_thread()}


def test_without_a_device_rows_wait_for_nothing_however_long_the_machine_has_been_up(monkeypatch):
    monkeypatch.setattr(device_marks.time, "perf_counter_ns", lambda: 10**9)
    marks = DeviceMarks()
    marks.begin()
    long = row(0) | {"span_ns": 10**10}
    ended(marks, long)
    assert marks.overdue() == [long]


def test_a_row_waits_for_its_time_on_the_device(device):
    marks = DeviceMarks()
    marks.begin()
    device.queue_ms = 30.0
    ended(marks, row(0))
    assert marks.settled() == []
    device.queue_ms = 50.0
    ended(marks, row(1))
    device.clock_ms = 40.0
    assert marks.settled() == [timed(0, 30)]
    device.clock_ms = 60.0
    assert marks.settled() == [timed(1, 20)]


def test_a_row_that_waits_too_long_goes_without(device, monkeypatch):
    marks = DeviceMarks()
    marks.begin()
    device.queue_ms = 30.0
    ended(marks, row(0))
    assert marks.overdue() == []
    assert marks.overdue(all_of_them=True) == [timed(0)]
    ended(marks, row(1))
    monkeypatch.setattr(device_marks, "PATIENCE_NS", -1)
    assert marks.settled() == [timed(1)]


def test_a_long_step_is_waited_for_longer(device, monkeypatch):
    monkeypatch.setattr(device_marks, "PATIENCE_NS", -1)
    marks = DeviceMarks()
    marks.begin()
    device.queue_ms = 30.0
    ended(marks, row(0) | {"span_ns": 3_000_000_000})
    assert marks.settled() == [] == marks.overdue()


def test_while_a_graph_is_captured_nothing_is_asked(device, monkeypatch):
    marks = DeviceMarks()
    marks.begin()
    ended(marks, row(0))
    for module in device_marks, phase_marks, stopwatch:
        monkeypatch.setattr(module, "is_capturing", lambda: True)
    monkeypatch.setattr(device, "query", lambda _: pytest.fail("it was asked"))
    assert marks.settled() == []
    ended(marks, row(1))  # without an event
    assert marks.overdue(all_of_them=True) == [timed(0), timed(1)]


def test_an_error_of_the_device_costs_the_time_and_no_more(device, monkeypatch):
    def raises(_: object) -> bool:
        raise RuntimeError("CUDA error of the script")

    marks = DeviceMarks()
    marks.begin()
    ended(marks, row(0))
    monkeypatch.setattr(device, "query", raises)
    assert marks.settled() == [timed(0)]


def test_without_a_device_rows_are_complete_at_once():
    marks = DeviceMarks()
    marks.begin()
    ended(marks, row(0))
    assert marks.settled() == [row(0)]


def test_marks_of_a_step_count_from_its_begin_on_the_stream(device):
    device.queue_ms = 5.0
    marks = StepMarks("cuda")
    device.queue_ms = 12.0
    reached = marks.mark()
    assert not marks.are_over()
    device.clock_ms = 20.0
    assert marks.are_over() and marks.resolve(reached) == 7_000_000
    with pytest.raises(RuntimeError, match="no mark"):
        marks.resolve(None)


class OnDevice(nn.Linear):
    """Its work takes 3 ms of the device, of which the host, which runs ahead, sees nothing."""

    def forward(self, data):
        MadeUpEvent.queue_ms += 3.0
        return super().forward(data)


class StepOnDevice(torch.optim.SGD):
    def step(self, closure=None):
        MadeUpEvent.queue_ms += 1.0
        return super().step(closure)


@pytest.mark.parametrize(("data_ms", "explicit"), [(0.0, False), (4.0, False), (4.0, True)])
def test_phases_are_those_of_the_device_whatever_the_host_waits_for(device, monkeypatch, tmp_path, data_ms, explicit):
    """The host waits for the device behind the optimizer, as `loss.item()` does; backward takes 6 ms there.

    Work after the optimizer belongs to the step only if the script itself ends it after that.
    """
    monkeypatch.setattr(rows, "ROW_NS", 20_000_000)
    monkeypatch.setattr(rows, "BATCH_NS", 70_000_000)
    device.clock_ms = 1e9  # whatever it is given it has done
    model = OnDevice(4, 4)
    optimizer = StepOnDevice(model.parameters(), lr=0.01)
    with distprof.record(tmp_path / "run", steps="off") as recorder:
        if explicit:
            recorder.step()
        for _ in range(60):
            MadeUpEvent.queue_ms += 0.0 if explicit else data_ms
            model(torch.ones(2, 4)).sum().backward()
            MadeUpEvent.queue_ms += 6.0
            optimizer.step()
            MadeUpEvent.queue_ms += data_ms if explicit else 0.0
            optimizer.zero_grad()
            time.sleep((10.0 + data_ms) / 1e3)
            if explicit:
                recorder.step()
    columns = noted(tmp_path / "run").columns
    spans = columns["span_ns"][1:-1]
    assert len(spans) >= 10
    phases_ms = (0.0, 3.0, 6.0 + data_ms, 1.0) if explicit else (data_ms, 3.0, 6.0, 1.0)
    for name, ms in zip(PHASES, phases_ms, strict=True):
        assert columns[name][1:-1] / spans == pytest.approx(np.full(len(spans), ms / (10 + data_ms)), abs=0.01), name


def test_a_sampled_step_lasts_as_long_as_on_the_device_from_which_its_calls_have_their_times(device):
    """The host ran ahead: its step took 1 ms, that of the device 20, 6 of which it stood still for a call."""
    marks = StepMarks("cuda")
    device.queue_ms = 10.0
    reached = marks.mark()
    device.queue_ms = 13.0
    waited = marks.mark()
    device.queue_ms = 19.0
    passed = marks.mark()
    call = CollectiveCall(op="all_reduce", group="0", group_description="", group_ranks=[0, 1], sequence=0,
                          group_sequence=0, num_elements=1, size_bytes=4, dtype="float32", peer=None, tag=None,
                          split_bytes=None, asynchronous=True, module_path=None, phase=None, step=1, enqueue_ns=0,
                          mark=marks.mark, reached=reached, waited=waited, passed=passed)
    device.queue_ms = 20.0
    running = sampled_steps._Running(step=1, start_ns=0, cost_ns=0, marks=marks, span_ns=1_000_000, calls=[call],
                                     ended=marks.mark())
    device.clock_ms = 30.0
    found = sampled_steps._sample(running).step
    assert (found.span_ns, found.arrived_ns, found.took_ns, found.blocked_ns) == (
        20_000_000, [10_000_000], [9_000_000], [6_000_000])


@pytest.mark.parametrize(("last_ms", "known"), [(10.0, True), (200.0, False)])
def test_a_long_step_that_was_not_marked_leaves_the_phases_of_its_row_unknown(device, monkeypatch, last_ms, known):
    """Steps of 2 ms of data and 8 of forward; the fourth one is not marked any more."""
    monkeypatch.setattr(phase_marks, "MARKED_STEPS", 3)
    marks = DeviceMarks()
    marks.begin()
    marks.phases.add(phase_marks.BEGIN)
    for last in (10.0, 10.0, 10.0, last_ms):
        for border, ms in ((phase_marks.ENTER, last - 8.0), (phase_marks.LEAVE, 8.0), (phase_marks.END, 0.0)):
            device.queue_ms += ms
            if marks.phases.is_on:
                marks.phases.add(border)
    ended(marks, row(0))
    device.clock_ms = device.queue_ms
    found, = marks.settled()
    assert [found[name] for name in PHASES] == ([8_000_000, 32_000_000, 0, 0] if known else [UNKNOWN] * 4)


class At(NamedTuple):
    """An event that the device has passed."""

    ms: float

    def elapsed_time(self, later: At) -> float:
        return later.ms - self.ms


def test_loading_between_two_forward_calls_is_data():
    """The device waits from 6 to 10 ms for the next batch; after the first mark of the next step nothing counts."""
    of = phase_marks
    marks = [(of.BEGIN, 0), (of.ENTER, 1), (of.LEAVE, 3), (of.LOAD, 6), (of.LOADED, 10), (of.ENTER, 10), (of.LEAVE, 12),
             (of.OPTIMIZER, 15), (of.OPTIMIZER_END, 16), (of.LOAD, 16), (of.END, 17), (of.ENTER, 19), (of.END, 20)]
    found = [*phase_marks.marked_steps([(border, At(ms)) for border, ms in marks])]
    assert found == [(17, 5, 4, 1), (3, 2, 0, 0)]


def test_marks_on_several_streams_are_noticed(device, monkeypatch):
    stream = 0
    monkeypatch.setattr(device_marks, "stream_id", lambda: stream)
    marks = StepMarks("cuda")
    marks.mark()
    assert not marks.is_mixed
    stream = 7
    marks.mark()
    stream = 0
    marks.mark()
    assert marks.is_mixed


def test_calls_that_a_stream_waits_for_at_once_move_data_as_long_as_it_stood_still(device):
    """DDP waits for all buckets when backward is over; it is unknown when each of them was done."""
    marks, calls = StepMarks("cuda"), []
    for device.queue_ms in (2.0, 5.0, 8.0):
        calls.append(CollectiveCall(
            op="all_reduce", group="0", group_description="", group_ranks=[0, 1], sequence=0, group_sequence=0,
            num_elements=1, size_bytes=4, dtype="float32", peer=None, tag=None, split_bytes=None, asynchronous=True,
            module_path=None, phase=None, step=1, enqueue_ns=0, mark=marks.mark, reached=marks.mark()))
    device.queue_ms = 10.0
    for call in calls:
        note_begin(call)
    device.queue_ms = 14.0
    for call in calls:
        note_wait(call, 0, 1, several=True)
    device.queue_ms = 20.0
    running = sampled_steps._Running(step=1, start_ns=0, cost_ns=0, marks=marks, span_ns=1, calls=calls,
                                     ended=marks.mark())
    device.clock_ms = 30.0
    found = sampled_steps._sample(running).step
    assert found.arrived_ns == [2_000_000, 5_000_000, 8_000_000]
    assert found.took_ns == found.blocked_ns == [4_000_000, 0, 0]
