"""Kernels of ROCm that are recorded as lasting far into those behind them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.scan.repair import cut_overlong
from support.jobs import called
from support.rank_traces import slice_of

STREAMS = st.lists(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=12), min_size=1, max_size=3)
"""For each stream, how long kernels take and how long nothing follows."""


def serial(streams: list[list[tuple[int, int]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = []
    for stream, kernels in enumerate(streams):
        at = 0
        for duration, gap in kernels:
            rows.append((stream, at, duration))
            at += duration + gap
    found = np.array(rows, np.int64).reshape(-1, 3)
    return found[:, 0], found[:, 1], found[:, 2]


@given(STREAMS, st.randoms(use_true_random=False))
def test_what_runs_one_after_the_other_stays_in_any_order(streams, random):
    stream, start, duration = serial(streams)
    order = np.array(random.sample(range(len(start)), len(start)), np.int64)
    found, cut = cut_overlong(stream[order], start[order], duration[order])
    assert not len(cut) and (found == duration[order]).all()


@given(STREAMS.filter(lambda streams: max(map(len, streams)) > 2), st.data())
def test_what_lasts_into_the_second_behind_it_is_cut_where_the_next_begins(streams, data):
    stream, start, duration = serial(streams)
    places = [place for place in range(len(start) - 2) if stream[place] == stream[place + 2]]
    wrong = sorted(data.draw(st.sets(st.sampled_from(places), min_size=1)))
    longer = duration.copy()
    longer[wrong] += start[np.array(wrong) + 2] - start[wrong] + 1_000_000
    found, cut = cut_overlong(stream, start, longer)
    assert sorted(cut.tolist()) == wrong
    assert all(found[place] == start[place + 1] - start[place] for place in wrong)
    right = np.setdiff1d(np.arange(len(start)), wrong)
    assert (found[right] == duration[right]).all()


@pytest.mark.long
@pytest.mark.parametrize(("call", "counted"), [("hipLaunchKernel", True), ("cudaLaunchKernel", False)])
def test_operators_and_communication_are_counted_with_what_a_stream_had_time_for(tmp_path, call, counted):
    """A stream of 600 us, whose second kernel is recorded with 1.6 s; of CUDA as it is."""
    for rank in range(2):
        events = [event for number, name in enumerate(("mm", "ncclDevKernel_AllReduce_Sum_f32_RING", "mm", "mm", "mm"))
                  for event in (
                      slice_of(name, 100 * number, 1_600_000 if number == 1 else 50, pid=0, tid=7, cat="kernel", args={
                          "stream": 7, "correlation": number}),
                      slice_of(call, 100 * number - 40, 5, pid=500, tid=500, cat="cuda_runtime", args={
                          "correlation": number}))]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({
            "distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"}, "host_name": "a",
            "traceEvents": [*events, slice_of("hipHop", 0, 500, pid=500, tid=1, cat="user_annotation")]}))
    ops = json.loads(called("ops", "--json", tmp_path).stdout)
    comms = json.loads(called("comms", "--json", tmp_path).stdout)
    assert ops["totals"]["self_device_ns"] == 2 * (300_000 if counted else 1_600_200_000)
    held = [each["end_ns"] - each["arrival_ns"] for one in comms["collectives"] for each in one["of_ranks"]]
    assert held == [100_000 if counted else 1_600_000_000] * 2
    said = [f"rank {rank}: 1 kernel of rank{rank}.json counted only until" for rank in range(2)]
    for command in ("ops", "comms"):
        assert all((one in called(command, tmp_path).stdout) == counted for one in said), command
