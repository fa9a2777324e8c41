"""Calls on data of a device: their times are those at which its stream came to them and went on behind them."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from distprof.recording.communication.collective_call import CollectiveCall, collective_rows, note_begin, note_wait
from distprof.recording.communication.labels import STOOD_STILL_NS, CollectiveRecorder

MS = 1_000_000


class Stream:
    """A stream that is so far when each mark is taken."""

    def __init__(self) -> None:
        self.now_ns, self.settled, self.uncertainty_ns = 0, 0, 700

    def mark(self) -> int:
        return self.now_ns

    def settle(self, *, every_stream: bool) -> None:
        assert not every_stream
        self.settled += 1

    def resolve(self, mark: int) -> int:
        assert self.settled == 1
        return mark


def resolved(*, on_device: bool, stood_still_ns: int, kernel: tuple[int, int] | None = None,
             future_ns: int | None = None, waits: bool = True) -> dict:
    """The row of a call at 100 ms on the host, to which its stream came at 105 ms."""
    stream = Stream()
    call = CollectiveCall(
        op="all_reduce", group="0", group_description="", group_ranks=[0, 1], sequence=0, group_sequence=1,
        num_elements=4, size_bytes=16, dtype="float32", peer=None, tag=None, split_bytes=None, asynchronous=True,
        module_path=None, phase=None, step=3, enqueue_ns=100 * MS, on_device=on_device, mark=stream.mark)
    stream.now_ns = 105 * MS
    call.reached = stream.mark()
    stream.now_ns = 110 * MS
    if waits:
        note_begin(call)
        stream.now_ns += stood_still_ns
        note_wait(call, 101 * MS, 102 * MS if on_device else 120 * MS)
    if kernel is not None:
        call.start_ns, call.end_ns, call.timed_by = *kernel, "timeline"
    if future_ns is not None:
        call.end_ns, call.timed_by = future_ns, "future"
    recorder = CollectiveRecorder.__new__(CollectiveRecorder)
    recorder.calls, recorder._streams, recorder.device_clock_ns = [call], stream, 0
    recorder._resolve_marks()
    assert recorder.device_clock_ns == stream.uncertainty_ns
    assert call.mark is call.reached is call.waited is call.passed is None, "they hold memory of the device"
    return collective_rows([call])[0]


def test_a_stream_that_stands_still_shows_the_end():
    row = resolved(on_device=True, stood_still_ns=3 * MS)
    assert (row["start_ns"], row["end_ns"], row["timed_by"]) == (105 * MS, 113 * MS, "wait")


def test_where_it_does_not_the_end_is_unknown():
    for row in (resolved(on_device=True, stood_still_ns=STOOD_STILL_NS),
                resolved(on_device=True, stood_still_ns=0, waits=False)):
        assert (row["start_ns"], row["end_ns"], row["timed_by"]) == (105 * MS, None, None)


def test_a_kernel_on_the_timeline_comes_first():
    row = resolved(on_device=True, stood_still_ns=3 * MS, kernel=(106 * MS, 112 * MS))
    assert (row["start_ns"], row["end_ns"], row["timed_by"]) == (106 * MS, 112 * MS, "timeline")


def test_a_backend_of_the_host_starts_when_the_stream_has_made_the_data():
    row = resolved(on_device=False, stood_still_ns=0, kernel=(101 * MS, 118 * MS))
    assert (row["start_ns"], row["end_ns"]) == (105 * MS, 118 * MS)
    row = resolved(on_device=False, stood_still_ns=0, future_ns=119 * MS)
    assert (row["start_ns"], row["end_ns"], row["timed_by"]) == (105 * MS, 119 * MS, "future")


@pytest.fixture
def group(monkeypatch):
    """A group of two ranks whose backend does nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(("asynchronous", "work", "gathered", "end_ns"), [
    (False, None, False, 113 * MS),  # the stream does it, or stands still for it
    (True, None, False, None),
    (False, None, True, None),  # it is done later, together with others
])
def test_a_call_that_leaves_no_work_to_wait_for_ends_when_the_stream_has_passed_it(group, monkeypatch, asynchronous,
                                                                                  work, gathered, end_ns):
    stream = Stream()
    ignored = SimpleNamespace(add=lambda *_: None, issued=lambda *_: None)
    recorder = CollectiveRecorder(SimpleNamespace(current=None), lambda: (3, "forward"), ignored,
                                  lambda function: function)
    recorder._streams, recorder._waits = stream, ignored
    if gathered:
        monkeypatch.setitem(dist.distributed_c10d._world.pg_coalesce_state, group, [])
    with FakeTensorMode():
        data = torch.empty(4, device="cuda")
    stream.now_ns = 105 * MS
    recorder._reached.mark = stream.mark()
    stream.now_ns = 113 * MS
    recorder._on_call("allreduce_", {"process_group": group.boxed(), "tensors": [data], "async_op": asynchronous},
                      (100 * MS, 101 * MS), work, None)
    recorder._resolve_marks()
    row = collective_rows(recorder.calls)[0]
    assert (row["start_ns"], row["end_ns"]) == (105 * MS, end_ns)
