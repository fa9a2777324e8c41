"""Marks on streams, against a device whose clock has another origin and runs faster than the host's."""

from types import SimpleNamespace

import pytest
import torch

from distprof.timing import stopwatch
from distprof.timing.stopwatch import Stopwatch, StreamStopwatch

RATE = 1 + 50e-6
"""The device's clock by the host's."""
START_NS = 1_790_000_000_000_000_000


class Machine:
    """The host's clock and, for each device, when it will have done what it was given."""

    def __init__(self) -> None:
        self.now_ns, self.device, self.busy_until = START_NS, 0, {0: START_NS, 1: START_NS}
        self.capturing = False
        self.num_synchronised = 0
        self.held_up_ns = iter(())
        """How long others have the device in front of each of the next events."""

    def time_ns(self) -> int:
        self.now_ns += 300
        return self.now_ns

    def work(self, duration_ns: int) -> None:
        self.busy_until[self.device] = max(self.busy_until[self.device], self.now_ns) + duration_ns

    def synchronize(self) -> None:
        self.num_synchronised += 1
        self.now_ns = max(self.now_ns, self.busy_until[self.device]) + 4_000

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)

    def event(self, _kind: str, *, enable_timing: bool) -> "Event":
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.device, self.at_ns = machine, None, 0

    def record(self) -> None:
        assert not self.machine.capturing
        self.device = torch.device("cuda", self.machine.device)
        self.at_ns = max(self.machine.now_ns + 3_000, self.machine.busy_until[self.machine.device])

    def query(self) -> bool:
        return self.machine.now_ns >= self.at_ns

    def synchronize(self) -> None:
        assert self.query() or self.at_ns - self.machine.now_ns < 10_000, "it waits for work of the script without end"
        self.machine.now_ns = max(self.machine.now_ns, self.at_ns) + 3_000 + next(self.machine.held_up_ns, 0)

    def elapsed_time(self, later: "Event") -> float:
        assert self.device == later.device
        origin = 77_000_000 * (1 + self.device.index)
        return ((later.at_ns - START_NS) * RATE + origin - (self.at_ns - START_NS) * RATE - origin) / 1e6


@pytest.fixture
def machine(monkeypatch):
    found = Machine()
    accelerator = SimpleNamespace(synchronize=found.synchronize, current_device_index=lambda: found.device,
                                  set_device_index=lambda index: setattr(found, "device", index))
    monkeypatch.setattr(stopwatch, "torch", SimpleNamespace(Event=found.event, accelerator=accelerator))
    monkeypatch.setattr(stopwatch, "has_events", lambda kind: True)
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(
        time_ns=found.time_ns, monotonic=lambda: found.now_ns / 1e9, sleep=found.sleep))
    monkeypatch.setattr(stopwatch, "accelerator",
                        lambda: SimpleNamespace(is_current_stream_capturing=lambda: found.capturing))
    monkeypatch.setattr(stopwatch, "device_type", lambda: "cuda")
    return found


def test_marks_tell_when_the_stream_came_to_them_by_the_hosts_clock(machine):
    watch = stopwatch.stopwatch()
    assert isinstance(watch, StreamStopwatch)
    machine.now_ns += 5_000_000_000
    machine.work(40_000_000)
    mark, asked_ns = watch.mark(), machine.now_ns  # the host runs ahead of the device
    machine.work(7_000_000)
    later = watch.mark()
    machine.now_ns += 5_000_000_000
    watch.settle()
    assert watch.resolve(mark) - asked_ns == pytest.approx(40_000_000, abs=10_000)
    assert watch.resolve(later) - watch.resolve(mark) == pytest.approx(7_000_000, abs=2_000)


def test_nothing_is_waited_for_while_marks_are_taken(machine):
    watch = stopwatch.stopwatch()
    before = machine.num_synchronised
    for _ in range(100):
        machine.work(1_000_000)
        watch.mark()
    assert machine.num_synchronised == before


def test_a_device_that_is_first_used_after_the_begin_has_times_too(machine):
    watch = stopwatch.stopwatch()
    machine.device = 1
    machine.now_ns += 1_000_000
    machine.work(9_000_000)
    mark, asked_ns = watch.mark(), machine.now_ns
    machine.device = 0
    first = watch.mark()
    watch.settle()
    assert machine.device == 0
    assert watch.resolve(mark) - asked_ns == pytest.approx(9_000_000, abs=20_000)
    assert watch.resolve(first) - asked_ns == pytest.approx(0, abs=20_000)


def test_a_graph_gets_no_events_and_takes_no_time(machine):
    watch = stopwatch.stopwatch()
    machine.capturing = True
    assert watch.mark() is None
    machine.capturing = False
    mark = watch.mark()
    machine.capturing = True
    assert watch.mark() is mark
    machine.capturing = False
    watch.settle()
    assert watch.resolve(None) == pytest.approx(START_NS, abs=1_000_000)


def test_a_device_that_hangs_is_not_waited_for_without_end(machine):
    watch = stopwatch.stopwatch()
    machine.work(3_600_000_000_000)
    watch.mark()
    began_ns = machine.now_ns
    for every_stream in (False, True):
        with pytest.raises(RuntimeError, match="did not finish its work within 20"):
            watch.settle(every_stream=every_stream)
    assert machine.now_ns - began_ns < 45_000_000_000


def test_without_an_accelerator_marks_are_taken_on_the_host():
    assert type(stopwatch.stopwatch()) is Stopwatch


@pytest.mark.parametrize(("held_up_ms", "error_ns", "tries"), [
    ([], 3_500, 5), ([4, 3, 5, 4, 6, 2, 0, 7], 3_500, 7), ([4, 0.3] * 100, 160_000, 24)])
def test_a_device_that_others_use_is_asked_until_it_answers_soon(machine, held_up_ms, error_ns, tries):
    """Half a round trip is by how much a comparison may be wrong, and no job is held up for long."""
    machine.held_up_ns = iter([round(ms * 1e6) for ms in held_up_ms])
    began, looks = machine.now_ns, []
    watch = StreamStopwatch.__new__(StreamStopwatch)
    look = StreamStopwatch._look
    watch._look = lambda: looks.append(1) or look(watch)
    watch.__init__("cuda")
    assert watch.uncertainty_ns == pytest.approx(error_ns, rel=0.1) and len(looks) == pytest.approx(tries, abs=1)
    assert machine.now_ns - began < 60e6
