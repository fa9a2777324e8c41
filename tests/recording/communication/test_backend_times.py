"""Joining calls with the timeline: queues that two threads empty in any way, kernels by number; never a wrong time."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.recording.communication.backend_times import time_calls
from distprof.recording.communication.collective_call import BackendEvent, CollectiveCall
from distprof.recording.tracing.kineto_trace import read_trace

MAIN, FIRST, SECOND = 100, 201, 202


def call(op: str = "all_reduce", number: int = 1, enqueue_ns: int = 0, **more) -> CollectiveCall:
    elements = more.pop("elements", 8)
    fields = {"op": op, "group": "0", "group_description": "", "group_ranks": [0, 1], "sequence": number - 1,
              "group_sequence": number, "num_elements": elements, "size_bytes": 4 * elements, "dtype": "float32",
              "peer": None, "tag": None, "split_bytes": None, "asynchronous": True, "module_path": None,
              "phase": None, "step": 0, "enqueue_ns": enqueue_ns, "returned_ns": enqueue_ns + 10, "thread": MAIN,
              "work_elements": (elements,)}
    return CollectiveCall(**(fields | more))


def event(thread: int, start_ns: int, end_ns: int | None, op: str = "all_reduce", elements: int | None = 8):
    return BackendEvent(name=f"gloo:{op}", thread=thread, start_ns=start_ns, end_ns=end_ns, elements=elements)


@dataclass
class Truth:
    """A queue that two threads of gloo emptied, as the recorder and the timeline saw it."""

    calls: list[CollectiveCall]
    events: list[BackendEvent]
    times: list[tuple[int, int | None] | None]
    """Start and end of each call; None where it had not begun when the timeline ended."""


@st.composite
def queues(draw) -> Truth:
    """Two threads take work in order; each may be held up between taking it and showing its start."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    number, earlier = draw(st.integers(1, 30)), draw(st.integers(0, 3))
    lengths = draw(st.sampled_from([(50, 300), (2000, 9000), (10, 20000)]))
    gap = draw(st.sampled_from([60, 1000, 6000]))
    kinds = draw(st.sampled_from([1, 2, 4]))
    now, enqueued = 10_000, []
    for _ in range(number + earlier):
        now += rng.randint(20, gap)
        enqueued.append(now)
    free, shown = [0, 0], []
    for enqueue_ns in enqueued:
        lane = min((0, 1), key=lambda one: (max(free[one], enqueue_ns), rng.random()))
        taken = max(free[lane], enqueue_ns) + rng.randint(1, 15)
        start = taken + rng.choice([1, 5, rng.randint(5, 400)])
        end = start + rng.randint(*lengths)
        free[lane] = end + rng.randint(1, 5)
        shown.append((lane, start, end))
    over = max(end for *_, end in shown) + 1 if draw(st.booleans()) else rng.choice(shown)[2] + rng.randint(1, 50)
    since = enqueued[earlier] - 15
    truth = Truth(calls=[], events=[], times=[])
    has_callbacks = draw(st.integers(1, 4))
    for index, ((lane, start, end), enqueue_ns) in enumerate(zip(shown, enqueued, strict=True)):
        elements = 8 * rng.randint(1, kinds)
        thread, ended = (FIRST, SECOND)[lane], end if end < over else None
        if since <= start < over:
            truth.events.append(event(thread, start, ended, elements=elements))
        if index < earlier:
            continue
        labelled = call(number=index + 1, enqueue_ns=enqueue_ns, elements=elements)
        if ended is not None and (index - earlier < has_callbacks or rng.random() < 0.3):
            labelled.runner, labelled.stamp_ns = thread, end - 1
            labelled.end_ns, labelled.timed_by = end - 1, "future"
        elif ended is not None and rng.random() < 0.8:
            labelled.over_by_ns = end + rng.randint(1, 30_000)
        truth.calls.append(labelled)
        truth.times.append((start, ended) if start < over else None)
    return truth


@given(queues())
def test_no_time_is_ever_wrong(truth):
    random.Random(0).shuffle(truth.events)
    anchored = [one.end_ns is not None for one in truth.calls]
    time_calls(truth.calls, truth.events)
    for one, times, was_anchored in zip(truth.calls, truth.times, anchored, strict=True):
        if one.start_ns is not None:
            assert times is not None and one.start_ns == times[0]
            assert was_anchored or one.end_ns == times[1]
            assert one.timed_by == ("future" if was_anchored else "timeline" if times[1] is not None else None)
        else:
            assert was_anchored or one.end_ns is None


def test_equal_ops_in_turn_are_told_apart_by_order():
    calls = [call(number=n + 1, enqueue_ns=n * 1000) for n in range(6)]
    calls[0].runner, calls[0].stamp_ns, calls[0].end_ns = FIRST, 90, 90
    calls[1].runner, calls[1].stamp_ns, calls[1].end_ns = SECOND, 1090, 1090
    time_calls(calls, [event((FIRST, SECOND)[n % 2], n * 1000 + 20, n * 1000 + 100) for n in range(6)])
    assert [one.start_ns for one in calls] == [n * 1000 + 20 for n in range(6)]
    assert [one.timed_by for one in calls[2:]] == ["timeline"] * 4


def test_two_that_may_be_swapped_stay_unknown_and_shift_nobody():
    calls = [call(number=n + 1, enqueue_ns=at, over_by_ns=10_000) for n, at in enumerate([0, 1000, 5000, 5001, 9000])]
    calls[0].runner, calls[0].stamp_ns, calls[0].end_ns = FIRST, 90, 90
    calls[1].runner, calls[1].stamp_ns, calls[1].end_ns = SECOND, 1090, 1090
    events = [event(FIRST, 20, 100), event(SECOND, 1020, 1100), event(FIRST, 5050, 5500), event(SECOND, 5060, 6000),
              event(FIRST, 9020, 9100)]
    time_calls(calls, events)
    assert [one.start_ns for one in calls] == [20, 1020, None, None, 9020]
    calls[3].work_elements = (9,)
    time_calls(calls, [*events[:3], event(SECOND, 5060, 6000, elements=9), events[4]])
    assert [one.start_ns for one in calls] == [20, 1020, 5050, 5060, 9020], "sizes tell them apart"


def test_a_work_without_label_makes_all_but_the_anchored_unknown():
    calls = [call(number=number, enqueue_ns=number * 1000) for number in (1, 2, 4)]
    calls[0].runner, calls[0].stamp_ns, calls[0].end_ns = FIRST, 1090, 1090
    time_calls(calls, [event(FIRST, number * 1000 + 20, number * 1000 + 100) for number in (1, 2, 3, 4)])
    assert [one.start_ns for one in calls] == [1020, None, None]


def test_a_reduce_scatter_is_all_of_its_parts_and_shows_as_an_all_reduce():
    calls = [call(enqueue_ns=0), call("reduce_scatter", 3, 1000, work_elements=(4, 4), elements=8)]
    calls[0].runner, calls[0].stamp_ns, calls[0].end_ns = FIRST, 90, 90
    time_calls(calls, [event(FIRST, 20, 100), event(FIRST, 1020, 1400, elements=4),
                       event(SECOND, 1030, 1500, elements=4)])
    assert (calls[1].start_ns, calls[1].end_ns, calls[1].timed_by) == (1020, 1500, "timeline")


def test_threads_of_two_groups_are_not_mixed_up():
    calls = [call(number=1, enqueue_ns=0), call(number=1, enqueue_ns=5, group="1")]
    time_calls(calls, [event(FIRST, 20, 100), event(SECOND, 30, 110)])
    assert [one.start_ns for one in calls] == [None, None], "whose is whose?"
    calls[0].runner, calls[0].stamp_ns, calls[0].end_ns, calls[0].over_by_ns = FIRST, 90, 90, 200
    calls[1].over_by_ns = 200
    time_calls(calls, [event(FIRST, 20, 100), event(SECOND, 30, 110)])
    assert [one.start_ns for one in calls] == [20, 30], "the other thread has only one group left"


def test_a_send_begins_where_it_is_called_and_needs_its_own_event():
    sends = [call("send", n + 1, n * 1000, work_elements=(), tag=0, peer=1) for n in range(2)]
    time_calls(sends, [event(MAIN, 5, 400, "send"), event(MAIN, 1500, 1600, "send")])
    assert (sends[0].start_ns, sends[0].end_ns) == (0, 400)
    assert (sends[1].start_ns, sends[1].end_ns) == (None, None)


# --- kernels of NCCL, as Kineto writes them --------------------------------------------------------------------


def kernel(kind: str, start_us: float, duration_us: float, **args) -> dict:
    return {"ph": "X", "cat": "kernel", "name": f"ncclDevKernel_{kind}", "pid": 0, "tid": 20, "ts": start_us,
            "dur": duration_us, "args": {"External id": 7, "correlation": 70, "stream": 20, **args}}


def kineto(*events: dict) -> bytes:
    return json.dumps({"baseTimeNanoseconds": 1_000_000, "traceEvents": list(events)}).encode()


def of(group: str, sequence: int, collective: str) -> dict:
    return {"Process Group Name": group, "Seq": sequence, "Collective name": collective, "Comms Id": 2**64 - 5,
            "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Group size": 2}


def on_device(op: str, number: int, **more) -> CollectiveCall:
    return call(op, number, 1_000_000, on_device=True, **more)


def test_kernels_are_joined_by_group_and_number():
    calls = [on_device("all_reduce", 5), on_device("all_gather", 6), on_device("all_reduce", 5, group="1"),
             on_device("broadcast", 9)]
    content = read_trace(kineto(
        kernel("AllReduce_Sum_f32_RING_LL", 10, 5, **of("0", 5, "allreduce")),
        kernel("AllGather_RING_LL", 20.5, 4.25, **of("0", 6, "_allgather_base")),
        kernel("AllReduce_Sum_f32_RING_LL", 40, 2, **of("1", 5, "allreduce")),
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 11, "dur": 1, "args": {}}))
    time_calls(calls, content.backend_events)
    assert [(one.start_ns, one.end_ns) for one in calls] == [
        (1_010_000, 1_015_000), (1_020_500, 1_024_750), (1_040_000, 1_042_000), (None, None)]
    assert [one.timed_by for one in calls] == ["timeline"] * 3 + [None]
    assert {row["external_id"] for row in content.rows if row["name"] != "gemm"} == {7}
    assert {row["correlation"] for row in content.rows if row["name"] != "gemm"} == {70}


def test_kernels_without_a_number_are_joined_with_the_call_that_launched_them():
    def launch(correlation: int, start_us: float, category: str = "cuda_driver") -> dict:
        return {"ph": "X", "cat": category, "name": "cuLaunchKernelEx", "pid": 1, "tid": 1, "ts": start_us, "dur": 0.1,
                "args": {"correlation": correlation}}

    def unnumbered(kind: str, start_us: float, correlation: int, **args) -> dict:
        known = {key: value for key, value in of("0", 0, "allreduce").items() if key not in ("Seq", "Comms Id")}
        return kernel(kind, start_us, 5, **known | {"correlation": correlation} | args)

    calls = [on_device("all_reduce", 7 + number, returned_ns=1_000_000 + 1000 * number + 900) for number in range(5)]
    for number, one in enumerate(calls):
        one.enqueue_ns = 1_000_000 + 1000 * number
    content = read_trace(kineto(
        unnumbered("AllReduce", 50, 1), unnumbered("AllReduce", 60, 2), launch(1, 0.5), launch(2, 1.5, "cuda_runtime"),
        unnumbered("AllReduce", 70, 3), launch(3, 2.95),  # between two calls: of a graph, say
        unnumbered("AllReduce", 80, 4, **{"Collective name": "broadcast"}), launch(4, 3.5),
        unnumbered("AllReduce", 90, 5, **{"Process Group Name": "1"}), launch(5, 4.5), unnumbered("AllReduce", 99, 6)))
    time_calls(calls, content.backend_events)
    assert [(one.start_ns, one.end_ns) for one in calls] == [
        (1_050_000, 1_055_000), (1_060_000, 1_065_000), *[(None, None)] * 3]


def test_calls_that_were_gathered_up_share_their_kernels():
    calls = [on_device("all_gather", 3), on_device("all_gather", 3)]
    content = read_trace(kineto(kernel("AllGather_RING_LL", 1, 5, **of("0", 3, "allgather_into_tensor_coalesced")),
                                kernel("AllGather_RING_LL", 7, 5, **of("0", 3, "coalesced"))))
    time_calls(calls, content.backend_events)
    assert [(one.start_ns, one.end_ns) for one in calls] == [(1_001_000, 1_012_000)] * 2


@pytest.mark.parametrize(("collective", "start_us"), [("broadcast", 10), ("allreduce", -10)])
def test_a_kernel_that_cannot_be_it_is_not_taken(collective, start_us):
    one = on_device("all_reduce", 5)
    time_calls([one], read_trace(kineto(kernel("AllReduce", start_us, 5, **of("0", 5, collective)))).backend_events)
    assert one.start_ns is None and one.end_ns is None


def test_sends_and_receives_are_joined_where_there_is_a_kernel_for_each():
    calls = [on_device("send", 0, work_elements=()), on_device("recv", 0, work_elements=())]
    kernels = [kernel("SendRecv", 10, 5, **of("0", 1, "send")), kernel("SendRecv", 20, 5, **of("0", 2, "recv"))]
    time_calls(calls, read_trace(kineto(*kernels[:1])).backend_events)
    assert [one.start_ns for one in calls] == [None, None]
    time_calls(calls, read_trace(kineto(*kernels)).backend_events)
    assert [one.start_ns for one in calls] == [1_010_000, 1_020_000]


def test_arguments_of_any_type_are_read():
    odd = {"External id": "4", "correlation": 2**64 - 1, "Sequence number": None, "Fwd thread id": [1], "name": 3,
           "Input Dims": {"a": 1}, "finished": "no", "Process Group Name": 7, "Seq": "x", "Collective name": None}
    content = read_trace(kineto(kernel("AllReduce", 1, 2, **odd), {"ph": "i", "name": "gloo:x", "ts": 1, "args": odd}))
    assert [{key: row[key] for key in ("external_id", "correlation", "sequence_number", "forward_thread")}
            for row in content.rows] == [dict.fromkeys(
                ("external_id", "correlation", "sequence_number", "forward_thread"))] * 2
    time_calls([on_device("all_reduce", 1), call()], content.backend_events)
    assert msgspec.json.encode(content.rows)
