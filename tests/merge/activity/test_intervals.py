"""Sets of time, against sets of single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.activity.activities import ActivityLane
from distprof.merge.activity.intervals import Intervals

LAST = 40
intervals = st.lists(st.tuples(st.integers(0, LAST), st.integers(0, LAST)), max_size=8)


def set_of(pairs: list[tuple[int, int]]) -> Intervals:
    return Intervals.of([start for start, _ in pairs], [end for _, end in pairs])


def instants(pairs: list[tuple[int, int]]) -> set[int]:
    return {time for start, end in pairs for time in range(start, end)}


def held(found: Intervals) -> set[int]:
    assert (found.ends > found.starts).all() and (found.starts[1:] > found.ends[:-1]).all(), "disjoint"
    return instants(list(zip(found.starts.tolist(), found.ends.tolist(), strict=True)))


@given(intervals, intervals)
def test_set_algebra(one, other):
    mine, theirs = instants(one), instants(other)
    assert held(set_of(one) & set_of(other)) == mine & theirs
    assert held(set_of(one) | set_of(other)) == mine | theirs
    assert held(set_of(one) - set_of(other)) == mine - theirs


@given(intervals, intervals)
def test_length_within(one, windows):
    lengths = set_of(one).within([start for start, _ in windows], [end for _, end in windows])
    assert lengths.tolist() == [len(instants(one) & set(range(*window))) for window in windows]


@st.composite
def lanes(draw):
    """Labels by instant, None where nothing is, and the lane of them."""
    labels = draw(st.lists(st.sampled_from([None, 1, 2, -3]), min_size=LAST, max_size=LAST))
    return labels, ActivityLane.of((time, time + 1, label) for time, label in enumerate(labels) if label is not None)


def painted(lane: ActivityLane) -> list[int | None]:
    inside, labels = lane.at(np.arange(LAST))
    return [label if there else None for there, label in zip(inside.tolist(), labels.tolist(), strict=True)]


@given(lanes(), lanes(), intervals)
def test_lanes_are_painted_over_each_other_and_cut(one, other, window):
    (below, lane), (above, top) = one, other
    assert painted(lane) == below
    assert painted(lane.under(top)) == [lower if upper is None else upper
                                        for lower, upper in zip(below, above, strict=True)]
    inside = instants(window)
    assert painted(lane.within(set_of(window))) == [label if time in inside else None
                                                   for time, label in enumerate(below)]
    assert painted(lane.outside(set_of(window))) == [None if time in inside else label
                                                    for time, label in enumerate(below)]
    assert held(lane.intervals([1, 2])) == {time for time, label in enumerate(below) if label in (1, 2)}


@given(lanes(), st.integers(0, LAST), st.integers(0, LAST))
def test_time_by_label(one, start, end):
    labels, lane = one
    window = [label for label in labels[start:end] if label is not None]
    assert lane.split(start, end) == {label: window.count(label) for label in set(window)}
