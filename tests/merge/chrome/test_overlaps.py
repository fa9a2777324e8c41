"""Slices that overlap: after the lanes and cuts that the engines find, none overlaps another of its lane in part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.chrome.layout import _by_thread_and_start
from distprof.merge.scan import compiled, plain
from support.engines import ENGINES, needs_compiled

Slice = tuple[int, int, int]
"""Thread, start, duration."""
slices = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 20)), max_size=25)
tolerances, lane_counts = st.sampled_from([0, 1, 2, 100]), st.sampled_from([1, 2, 3, 16])


def laned(engine: Any, found: list[Slice], tolerance: int, max_lanes: int) -> list[tuple[Slice, int, int]]:
    """Each slice with its lane and its new duration, -1 where it keeps its own."""
    thread, start, dur = (np.array([one[part] for one in found], np.int64) for part in range(3))
    order = _by_thread_and_start(np.arange(len(start)), thread, start, dur, len(start))
    lane, cut = engine.find_overlaps(order, start, dur, thread.astype(np.int32), tolerance=tolerance,
                                     max_lanes=max_lanes)
    return list(zip(found, lane.tolist(), cut.tolist(), strict=True))


def overlap_in_part(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """True for spans that share time while neither lies in the other."""
    (first, last), (second, end) = sorted((one, other))
    return first < second < last < end


def conflicts(spans: list[tuple[Any, int, int]]) -> set[int]:
    """Numbers of the spans (lane, start, end) that overlap an earlier or later one of their lane in part."""
    return {number for number, (lane, *span) in enumerate(spans) for other_lane, *other in spans
            if lane == other_lane and overlap_in_part(tuple(span), tuple(other))}


@pytest.mark.parametrize("engine", ENGINES)
@given(found=slices, tolerance=tolerances, max_lanes=lane_counts)
def test_no_slice_of_a_lane_overlaps_another_in_part(engine, found, tolerance, max_lanes):
    result = laned(engine, found, tolerance, max_lanes)
    after = [((thread, lane), start, start + (dur if cut < 0 else cut)) for (thread, start, dur), lane, cut in result]
    assert not conflicts(after)
    before = conflicts([(thread, start, start + dur) for thread, start, dur in found])
    for number, ((_, _, dur), lane, cut) in enumerate(result):
        if number not in before:
            assert lane == 0 and cut == -1, "what overlaps nothing stays as it is"
        assert 0 <= lane < max_lanes and (cut == -1 or 0 < cut < dur)
        if 0 <= cut < dur - tolerance:
            assert lane == max_lanes - 1, "more than the tolerance is cut only where no lane is left"
        if lane == 0 and max_lanes > 1 and cut >= 0:
            assert dur - cut <= tolerance
    if max_lanes > len(found):
        assert all(lane == 0 for (*_, lane, cut) in result if cut >= 0), "with room, what is cut stays on its thread"


@needs_compiled
@given(found=slices, tolerance=tolerances, max_lanes=lane_counts)
def test_both_engines_find_the_same(found, tolerance, max_lanes):
    assert laned(compiled, found, tolerance, max_lanes) == laned(plain, found, tolerance, max_lanes)


@pytest.mark.parametrize("engine", ENGINES)
def test_by_hand(engine):
    # a parent, a child, one that sticks out of the parent by 1, one by 50, one that fits beside it, one behind all
    found = [(0, 0, 100), (0, 10, 20), (0, 40, 61), (0, 50, 100), (0, 60, 80), (0, 200, 5), (1, 50, 100)]
    result = laned(engine, found, 1, 4)
    assert [lane for _, lane, _ in result] == [0, 0, 0, 1, 1, 0, 0]
    assert [cut for *_, cut in result] == [-1, -1, 60, -1, -1, -1, -1]
    assert [cut for *_, cut in laned(engine, found, 1, 1)] == [-1, -1, 60, 50, 40, -1, -1]
    assert laned(engine, [], 0, 4) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deep_stack_of_slices(engine):
    depth = 5000
    found = [(0, level, 3 * depth - 2 * level) for level in range(depth)]
    assert {(lane, cut) for _, lane, cut in laned(engine, found, 0, 3)} == {(0, -1)}
    stairs = [(0, step, depth) for step in range(depth)]
    assert [lane for _, lane, _ in laned(engine, stairs, 0, 3)] == [0, 1] + [2] * (depth - 2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("changes", "match"), [
    ({"order": [0, 2]}, "row numbers from 0 to 1"), ({"order": [-1]}, "row numbers"), ({"dur": [1]}, "of one length"),
    ({"dur": [1, -1]}, "no durations below 0"), ({"start": [0, 2**62]}, r"below 2\^62"), ({"max_lanes": 0}, "a lane")])
def test_what_would_end_badly_is_refused(engine, changes, match):
    fine = {"order": [0, 1], "start": [0, 1], "dur": [1, 1], "thread": [0, 0], "tolerance": 0, "max_lanes": 2}
    engine.find_overlaps(**fine)
    with pytest.raises(ValueError, match=match):
        engine.find_overlaps(**fine | changes)


@pytest.mark.parametrize("engine", ENGINES)
@given(found=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=25),
       times=st.lists(st.integers(-2, 60), max_size=10))
def test_the_innermost_slice_is_the_last_that_runs(engine, found, times):
    found, times = sorted(found), sorted(times)
    start, end = np.array([one for one, _ in found], np.int64), np.array([sum(one) for one in found], np.int64)
    wanted = [max((number for number, (begin, dur) in enumerate(found) if begin <= at <= begin + dur), default=-1)
              for at in times]
    assert engine.find_innermost(start, end, np.array(times, np.int64)).tolist() == wanted


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("columns", "match"), [
    (([0, 1], [1], [0]), "as many ends"), (([1, 0], [1, 1], [0]), "ascend"), (([0, 1], [1, 1], [1, 0]), "ascend")])
def test_times_that_do_not_ascend_are_refused(engine, columns, match):
    with pytest.raises(ValueError, match=match):
        engine.find_innermost(*columns)
