"""Slices that overlap: after the lanes and cuts that the engines find, none overlaps another of its lane in part."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.scan import compiled, plain
from distprof.merge.scan.scanned_columns import AROUND, FOLLOWING
from support.engines import ENGINES, needs_compiled

Slice = tuple[int, int, int]
"""Thread, start, duration."""
slices = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 20)), max_size=25)
questions = st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 60), st.sampled_from([AROUND, FOLLOWING])),
                     max_size=10)
"""Thread, time, and which slice is asked for."""
places = st.lists(st.integers(0, 35), max_size=4)
"""Where the rows are cut into parts."""
tolerances, lane_counts = st.sampled_from([0, 1, 2, 100]), st.sampled_from([1, 2, 3, 16])


def laid(engine: Any, rows: list[Slice], tolerance: int, max_lanes: int,
         parts: list[int] | None = None) -> list[tuple[Slice, int, int]]:
    """Each row with its lane and its new duration, -1 where it keeps its own."""
    order = sorted(range(len(rows)), key=lambda row: (*rows[row][:2], rows[row][2] < 0, -rows[row][2]))
    lanes, lane, cut = engine.new_lanes(tolerance=tolerance, max_lanes=max_lanes), [-1] * len(rows), [-1] * len(rows)
    for first, last in pairwise([0, *sorted(parts or []), len(rows)]):
        numbers = order[first:last]
        found = lanes.add(np.array(numbers, np.int64), *(
            np.array([rows[number][part] for number in numbers], np.int64) for part in range(3)))
        for number, its_lane, its_cut in zip(numbers, found.lane.tolist(), found.cut.tolist(), strict=True):
            lane[number], cut[number] = its_lane, its_cut
        for number, its_lane, its_cut in found.late.tolist():
            assert number not in numbers and (its_lane < 0) != (its_cut < 0)
            if its_lane >= 0:
                lane[number] = its_lane
            else:
                cut[number] = its_cut
    return list(zip(rows, lane, cut, strict=True))


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
    result = laid(engine, found, tolerance, max_lanes)
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
@given(found=slices, asked=questions, tolerance=tolerances, max_lanes=lane_counts, parts=places)
def test_both_engines_find_the_same_in_parts_of_any_size(found, asked, tolerance, max_lanes, parts):
    rows = found + asked
    whole = laid(compiled, rows, tolerance, max_lanes)
    assert laid(compiled, rows, tolerance, max_lanes, parts) == whole
    assert laid(plain, rows, tolerance, max_lanes, parts) == whole


@pytest.mark.parametrize("engine", ENGINES)
def test_by_hand(engine):
    # a parent, a child, one that sticks out of the parent by 1, one by 50, one that fits beside it, one behind all
    found = [(0, 0, 100), (0, 10, 20), (0, 40, 61), (0, 50, 100), (0, 60, 80), (0, 200, 5), (1, 50, 100)]
    result = laid(engine, found, 1, 4)
    assert [lane for _, lane, _ in result] == [0, 0, 0, 1, 1, 0, 0]
    assert [cut for *_, cut in result] == [-1, -1, 60, -1, -1, -1, -1]
    assert [cut for *_, cut in laid(engine, found, 1, 1)] == [-1, -1, 60, 50, 40, -1, -1]
    assert laid(engine, [], 0, 4) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deep_stack_of_slices(engine):
    depth = 5000
    found = [(0, level, 3 * depth - 2 * level) for level in range(depth)]
    assert {(lane, cut) for _, lane, cut in laid(engine, found, 0, 3)} == {(0, -1)}
    stairs = [(0, step, depth) for step in range(depth)]
    assert [lane for _, lane, _ in laid(engine, stairs, 0, 3)] == [0, 1] + [2] * (depth - 2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("changes", "match"), [
    ({"duration": [1]}, "of one length"), ({"duration": [1, -3]}, "no durations below 0"),
    ({"start": [0, 2**62]}, r"below 2\^62"), ({"start": [1, 0]}, "by thread and start"),
    ({"thread": [1, 0]}, "by thread and start"), ({"max_lanes": 0}, "a lane")])
def test_what_would_end_badly_is_refused(engine, changes, match):
    def lay(tolerance: int, max_lanes: int, **columns: list[int]) -> None:
        engine.new_lanes(tolerance=tolerance, max_lanes=max_lanes).add(**columns)

    fine = {"row": [0, 1], "start": [0, 1], "duration": [1, 1], "thread": [0, 0], "tolerance": 0, "max_lanes": 2}
    lay(**fine)
    with pytest.raises(ValueError, match=match):
        lay(**fine | changes)


@pytest.mark.parametrize("engine", ENGINES)
@given(found=slices, asked=questions, tolerance=tolerances, max_lanes=lane_counts)
def test_who_asks_is_told_the_lane_of_the_last_slice_that_runs_or_the_next(engine, found, asked, tolerance, max_lanes):
    result = laid(engine, found + asked, tolerance, max_lanes)
    shown = sorted(((thread, start, -dur, lane, start + (dur if cut < 0 else cut))
                    for (thread, start, dur), lane, cut in result[:len(found)]), key=lambda one: one[:3])
    assert laid(engine, found, tolerance, max_lanes) == result[:len(found)], "to ask changes nothing"
    for (thread, at, what), lane, cut in result[len(found):]:
        around = [its for on, start, _, its, end in shown if on == thread and start <= at <= end]
        following = [its for on, start, _, its, _ in shown if on == thread and start > at]
        wanted = around[-1:] if what == AROUND else following[:1]
        assert [lane] == (wanted or [-1]) and cut == -1
