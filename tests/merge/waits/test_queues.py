"""Queues of devices in `distprof waits`: beside a computation of its own on traces of GPUs, and on made-up ones."""

from __future__ import annotations

import gzip
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.waits.queues import _clipped, _deepest, _full
from support.jobs import called
from support.kineto_files import DLRM, needs_shared
from support.made_up_traces import folder, op

RUNTIME = ("cuda_runtime", "cuda_driver")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def queues(path, *flags):
    done = called("waits", "--json", *flags, path)
    assert done.returncode == 0, done.stderr
    return {row["rank"]: row for row in json.loads(done.stdout)["queues"]}


def by_hand(events):
    """The same, one event after the other, in microseconds."""
    slices = [one for one in events if one.get("ph") == "X"]
    calls = {one["args"]["correlation"]: one for one in slices if one.get("cat") in RUNTIME
             and "correlation" in one["args"]}
    (begin, end), = [(one["ts"], one["ts"] + one["dur"]) for one in slices
                     if one["name"].startswith("ProfilerStep#")] or [(None, None)]
    first, runs = dict[int, float](), dict[int, float]()
    ran, unsent = [], 0
    for one in slices:
        if one.get("cat") in DEVICE:
            correlation = one["args"]["correlation"]
            ran.append((one["ts"], one["ts"] + one["dur"]))
            unsent += correlation not in calls
            if correlation in calls:
                runs[correlation] = runs.get(correlation, 0) + one["dur"]
                first[correlation] = min(first.get(correlation, one["ts"]), one["ts"])
    waiting = [(calls[one]["ts"] + calls[one]["dur"], starts) for one, starts in first.items()]
    mine = [(sent, starts) for one, (sent, starts) in zip(first, waiting, strict=True)
            if begin <= calls[one]["ts"] < end]
    delays = [max(starts - sent, 0) for sent, starts in mine]
    short = [one for one in first if begin <= calls[one]["ts"] < end and runs[one] < calls[one]["dur"]]
    ticks = sorted({begin, end, *(tick for pair in (*waiting, *ran) for tick in pair if begin < tick < end)})
    depth = [sum(sent <= low < starts for sent, starts in waiting) for low in ticks[:-1]]
    spans = [high - low for low, high in itertools.pairwise(ticks)]
    return {"commands": len(mine), "short": len(short), "unsent": unsent, "delay_ns": 1e3 * sum(delays),
            "longest_ns": 1e3 * max(delays),
            "queued_ns": 1e3 * sum(deep * span for deep, span in zip(depth, spans, strict=True)),
            "deepest": max(depth), "span_ns": 1e3 * (end - begin)}


@pytest.mark.long
@needs_shared
def test_queues_of_eight_gpus_are_those_of_a_computation_by_hand():
    found = queues(DLRM / "kineto")
    assert sorted(found) == list(range(8))
    for path in (DLRM / "kineto").iterdir():
        trace = json.loads(gzip.decompress(path.read_bytes()))
        expected = by_hand(trace["traceEvents"])
        mine = found[trace["distributedInfo"]["rank"]]
        assert {name: mine[name] for name in expected} == pytest.approx(expected, abs=1)
        assert mine["mean_delay_ns"] == pytest.approx(expected["delay_ns"] / expected["commands"])
        assert mine["mean_depth"] == pytest.approx(expected["queued_ns"] / expected["span_ns"])


def launch(ts, correlation, dur=2, name="cudaLaunchKernel"):
    return op(name, ts, dur, cat="cuda_runtime", correlation=correlation)


def kernel(ts, dur, correlation, tid=7):
    return op("kernel", ts, dur, tid=tid, cat="kernel", correlation=correlation)


TWO_STEPS = [op("ProfilerStep#3", 0, 100, cat="user_annotation"), op("ProfilerStep#4", 100, 100, cat="user_annotation"),
             launch(0, 1), launch(2, 2), launch(4, 3), kernel(10, 20, 1), kernel(30, 10, 2), kernel(5, 10, 3, tid=8),
             launch(90, 4), kernel(110, 20, 4),                         # waits in both steps
             launch(150, 5, dur=10, name="cudaGraphLaunch"), kernel(155, 5, 5),  # begins before its call is over
             kernel(170, 5, 5),
             kernel(180, 5, 99)]                                        # nobody sent it


def test_what_waits_in_two_steps_counts_in_each_for_its_part(tmp_path):
    whole = queues(folder(tmp_path, TWO_STEPS))[0]
    assert (whole["commands"], whole["delay_ns"], whole["longest_ns"]) == (5, (8 + 26 + 0 + 18) * 1000, 26_000)
    assert (whole["queued_ns"], whole["deepest"], whole["unsent"]) == ((8 + 26 + 18) * 1000, 2, 1)
    first, second = queues(tmp_path, "--step", 3)[0], queues(tmp_path, "--step", 4)[0]
    assert (first["commands"], second["commands"]) == (4, 1)
    assert (first["queued_ns"], second["queued_ns"]) == ((8 + 26 + 8) * 1000, 10_000)
    assert whole["span_ns"] == 200_000


def test_a_host_without_a_device_queues_nothing_and_that_is_said(tmp_path):
    run = folder(tmp_path, [op("aten::mm", 0, 5)], [op("aten::mm", 0, 5)])
    assert queues(run) == {} and "queues" not in called("waits", run).stdout
    assert "ranks 0 and 1 without a device: operators run when they are called, so nothing is queued" in called(
        "waits", "--queues", run).stdout


def test_one_table_has_a_row_for_each_rank(tmp_path):
    sent = [one for one in TWO_STEPS if one["args"].get("correlation") != 99]
    text = called("waits", folder(tmp_path, TWO_STEPS, sent)).stdout
    assert "device queues" in text and "not counted: 1 command whose launch is unknown" in text
    assert len(queues(tmp_path)) == 2 and set(queues(tmp_path, "--rank", 1)) == {1}


INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda one: (one[0], one[0] + one[1])))


@given(INTERVALS, st.integers(0, 10), st.integers(10, 30))
def test_depths_are_those_of_counting_each_tick(intervals, low, high):
    import numpy as np

    start, end = _clipped(np.array([one for one, _ in intervals], np.int64),
                          np.array([one for _, one in intervals], np.int64), low, high)
    depths = [sum(one <= tick < other for one, other in intervals) for tick in range(low, high)]
    assert _deepest(start, end) == max(depths, default=0)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(0, 2))), st.integers(0, 10),
       st.integers(10, 30), st.integers(1, 4))
def test_full_queues_are_those_of_counting_each_tick(intervals, low, high, full):
    import numpy as np

    start, lasts, stream = np.array(intervals, np.int64).reshape(-1, 3).T
    ticks = [sum(sum(one <= tick < one + lasts and on == number for one, lasts, on in intervals) >= full
                 for number in range(3)) for tick in range(low, high)]
    assert _full(start, start + lasts, stream, low, high, full) == sum(ticks)


def test_a_host_that_has_sent_as_much_as_a_stream_takes_is_said_to_wait(tmp_path):
    events = [one for number in range(1100) for one in (launch(number, 1 + number, dur=1), kernel(
        5000 + number, 1, 1 + number))]
    run = folder(tmp_path, events)
    # 1,024 have been sent at 1,024 us, and the 77th begins at 5,076 us: then fewer are left
    assert queues(run)[0]["full_ns"] == (5076 - 1024) * 1000
    assert "streams had 1,024 commands in their queue for 4.05 ms in all" in called("waits", "--queues", run).stdout
