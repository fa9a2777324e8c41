"""Sequences that lack some of each other's elements: nothing behind what is missing is shifted."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.match.sequence_alignment import EXACT, align, common_positions

labels = st.integers(0, 3)
short = st.lists(labels, max_size=20)


def length_of_common(one, other) -> int:
    """By its definition."""
    @cache
    def length(row: int, column: int) -> int:
        if row == len(one) or column == len(other):
            return 0
        if one[row] == other[column]:
            return 1 + length(row + 1, column + 1)
        return max(length(row + 1, column), length(row, column + 1))

    return length(0, 0)


@given(short, short)
def test_short_sequences_get_as_many_pairs_as_there_can_be(one, other):
    ours, theirs = align(np.array(one, np.int64), np.array(other, np.int64))
    assert all(np.diff(ours) > 0) and all(np.diff(theirs) > 0)
    assert [one[place] for place in ours] == [other[place] for place in theirs]
    assert len(ours) == length_of_common(one, other)


@given(st.lists(short, min_size=1, max_size=5))
def test_places_ascend_and_one_place_is_one_label(sequences):
    places = common_positions([np.array(one, np.int64) for one in sequences])
    at: dict[int, int] = {}
    for one, place in zip(sequences, places, strict=True):
        assert all(np.diff(place) > 0)
        for label, where in zip(one, place.tolist(), strict=True):
            assert at.setdefault(where, label) == label
    assert sorted(at) == list(range(len(at)))


@given(st.integers(2, 5), st.integers(0, 40), st.data())
def test_what_labels_tell_apart_is_found_again(num_ranks, length, data):
    truth = data.draw(st.permutations(range(length)))
    kept = []
    for _ in range(num_ranks):
        first = data.draw(st.integers(0, 3))
        lost = data.draw(st.sets(st.integers(0, max(length - 1, 0)), max_size=3))
        kept.append([label for place, label in enumerate(truth) if place >= first and place not in lost])
    places = common_positions([np.array(one, np.int64) for one in kept])
    where: dict[int, int] = {}
    for one, place in zip(kept, places, strict=True):
        for label, at in zip(one, place.tolist(), strict=True):
            assert where.setdefault(label, at) == at
    assert len(set(where.values())) == len(where)


def test_long_sequences_find_together_again_behind_every_gap():
    chance = random.Random(1)
    truth = np.array([chance.randrange(50) for _ in range(20_000)], np.int64)
    lost = sorted(chance.sample(range(20_000), 40))
    # and a block that is longer than what is aligned exactly
    kept = np.delete(np.arange(20_000), [*lost, *range(9_000, 9_000 + 10 * EXACT)])
    ours, theirs = align(truth, truth[kept])
    right = np.count_nonzero(ours == kept[theirs])
    # next to a gap equal labels leave a choice
    assert len(ours) == len(kept) and right >= len(kept) - 3 * len(lost)


def test_a_missing_first_one_of_a_pattern_shifts_nothing():
    pattern = np.array([1, 2, 2, 3] * 500, np.int64)
    ours, theirs = align(pattern, pattern[1:])
    assert (ours == theirs + 1).all() and len(ours) == len(pattern) - 1
    # of equal ones the first is missing: a window begins late more often than it ends early
    same = np.zeros(9, np.int64)
    assert align(same, same[1:])[0].tolist() == list(range(1, 9))
