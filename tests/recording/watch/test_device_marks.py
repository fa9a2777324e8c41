"""Times on a device are read when it has come to them, and nothing waits: the device here is made up."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from distprof.contract.watch import UNKNOWN
from distprof.recording.watch import device_marks
from distprof.recording.watch.device_marks import DeviceMarks, StepMarks
from distprof.timing import stopwatch


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
    for module in device_marks, stopwatch:
        monkeypatch.setattr(module, "device_type", lambda: "cuda")
    monkeypatch.setattr(torch, "Event", MadeUpEvent)
    MadeUpEvent.clock_ms = MadeUpEvent.queue_ms = 0.0
    return MadeUpEvent


def row(first: int) -> dict[str, int]:
    return {"first_step": first, "device_ns": UNKNOWN}


def test_a_row_waits_for_its_time_on_the_device(device):
    marks = DeviceMarks()
    marks.begin()
    device.queue_ms = 30.0
    marks.end(row(0))
    assert marks.settled() == []
    device.queue_ms = 50.0
    marks.end(row(1))
    device.clock_ms = 40.0
    assert marks.settled() == [{"first_step": 0, "device_ns": 30_000_000}]
    device.clock_ms = 60.0
    assert marks.settled() == [{"first_step": 1, "device_ns": 20_000_000}]


def test_a_row_that_waits_too_long_goes_without(device, monkeypatch):
    marks = DeviceMarks()
    marks.begin()
    device.queue_ms = 30.0
    marks.end(row(0))
    assert marks.overdue() == []
    assert marks.overdue(all_of_them=True) == [row(0)]
    marks.end(row(1))
    monkeypatch.setattr(device_marks, "PATIENCE_NS", -1)
    assert marks.settled() == [row(1)]


def test_while_a_graph_is_captured_nothing_is_asked(device, monkeypatch):
    marks = DeviceMarks()
    marks.begin()
    marks.end(row(0))
    for module in device_marks, stopwatch:
        monkeypatch.setattr(module, "is_capturing", lambda: True)
    monkeypatch.setattr(device, "query", lambda _: pytest.fail("it was asked"))
    assert marks.settled() == []
    marks.end(row(1))  # without an event
    assert marks.overdue(all_of_them=True) == [row(0), row(1)]


def test_an_error_of_the_device_costs_the_time_and_no_more(device, monkeypatch):
    def raises(_: object) -> bool:
        raise RuntimeError("CUDA error of the script")

    marks = DeviceMarks()
    marks.begin()
    marks.end(row(0))
    monkeypatch.setattr(device, "query", raises)
    assert marks.settled() == [row(0)]


def test_without_a_device_rows_are_complete_at_once():
    marks = DeviceMarks()
    marks.begin()
    marks.end(row(0))
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
