"""Sequence alignment: brings sequences that lack some of each other's elements into one order."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np

from distprof.arrays import Integers

Labels = Integers
EXACT = 64
"""If the differing parts are at most this long, they are aligned by their longest common subsequence."""
FAR = 4096
"""Elements that only one sequence has are skipped over at most this distance."""
SURE = 16
"""Sequences are in step again where this many consecutive elements are nearly all equal."""
NEARLY = 0.9
"""Fraction of the elements that has to be equal for this."""


def common_positions(sequences: Sequence[Labels]) -> list[Labels]:
    """Brings sequences that should be equal into one order.

    If no sequence has a label twice, equal labels are the same element. Otherwise each sequence is aligned with the
    merged order of those before it, longest first, so that missing elements do not shift what follows.

    Returns:
        Per sequence the ascending place of each element in the common order; equal places mean the same element.
    """
    unique = _positions_of_unique(sequences)
    if unique is not None:
        return unique
    order = sorted(range(len(sequences)), key=lambda index: -len(sequences[index]))
    columns, labels, taken = np.empty(0, np.int64), np.empty(0, np.int64), 0
    found: list[Labels] = [columns] * len(sequences)
    for index in order:
        own = np.asarray(sequences[index], np.int64)
        ours, theirs = align(labels, own)
        mine = np.full(len(own), -1, np.int64)
        mine[theirs] = columns[ours]
        new = np.flatnonzero(mine < 0)
        mine[new] = np.arange(taken, taken + len(new))
        taken += len(new)
        found[index] = mine
        if len(new):
            # a new element comes after the common element before it, and after what the others have there
            after = np.searchsorted(theirs, new)
            place = np.where(after < len(ours), np.append(ours, 0)[after], len(columns))
            columns, labels = np.insert(columns, place, mine[new]), np.insert(labels, place, own[new])
    place_of = np.empty(taken, np.int64)
    place_of[columns] = np.arange(taken)
    return [place_of[mine] for mine in found]


def _positions_of_unique(sequences: Sequence[Labels]) -> list[Labels] | None:
    """Orders unique labels topologically; None if a sequence has a label twice or two have labels in different
    orders."""
    if not sequences or any(len(np.unique(one)) < len(one) for one in sequences):
        return None
    following = TopologicalSorter[int]()
    for one in sequences:
        labels = one.tolist()
        if labels:
            following.add(labels[0])
        for before, after in pairwise(labels):
            following.add(after, before)
    try:
        place_of = {label: place for place, label in enumerate(following.static_order())}
    except CycleError:
        return None
    return [np.array([place_of[label] for label in one.tolist()], np.int64) for one in sequences]


def align(one: Labels, other: Labels) -> tuple[Labels, Labels]:
    """Pairs equal elements of two sequences, in order; if there is a choice, the last ones.

    The number of pairs is the largest possible if the differing parts are no longer than `EXACT`. Otherwise differences
    are resolved one after the other with bounded look-ahead, in time linear in the length.

    Returns:
        Ascending places in `one`, and the places in `other` that they are paired with.
    """
    shorter = min(len(one), len(other))
    behind = _equal(one[::-1][:shorter], other[::-1][:shorter])
    before = _equal(one[:shorter - behind], other[:shorter - behind])
    end, other_end = len(one) - behind, len(other) - behind
    ours, theirs = _differing(one[before:end], other[before:end + other_end - end])
    return (np.concatenate([np.arange(before), ours + before, np.arange(end, len(one))]),
            np.concatenate([np.arange(before), theirs + before, np.arange(other_end, len(other))]))


def _equal(one: Integers, other: Integers) -> int:
    """Returns the length of the common prefix."""
    differ = np.flatnonzero(one != other)
    return int(differ[0]) if len(differ) else len(one)


def _differing(one: Labels, other: Labels) -> tuple[Labels, Labels]:
    pairs: list[tuple[int, int]] = []
    at, there = 0, 0
    while at < len(one) and there < len(other):
        window, window_there = one[at:at + EXACT], other[there:there + EXACT]
        is_all = len(one) - at <= EXACT and len(other) - there <= EXACT
        if not is_all:
            length = min(len(window), len(window_there))
            same = _equal(window[:length], window_there[:length])
            if same:
                pairs += zip(range(at, at + same), range(there, there + same), strict=True)
                at, there = at + same, there + same
                continue
        found = longest_common(window.tolist(), window_there.tolist())
        if is_all:
            pairs += [(at + ours, there + theirs) for ours, theirs in found]
            break
        if len(found) < SURE:
            jump = _jump(one[at:], other[there:])
            if jump is not None:
                at, there = at + jump[0], there + jump[1]
                continue
        # elements in the far half of the window may have better partners behind it
        kept = [pair for pair in found if max(pair) < EXACT // 2]
        pairs += [(at + ours, there + theirs) for ours, theirs in kept]
        step, step_there = (kept[-1][0] + 1, kept[-1][1] + 1) if kept else (EXACT // 2, EXACT // 2)
        at, there = at + step, there + step_there
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def longest_common(one: Sequence[int], other: Sequence[int]) -> list[tuple[int, int]]:
    """Returns a longest common subsequence as pairs of places; if there is a choice, the last elements."""
    width = len(other) + 1
    lengths = [[0] * width for _ in range(len(one) + 1)]
    for row, label in enumerate(one):
        above, here = lengths[row], lengths[row + 1]
        for column, label_there in enumerate(other):
            here[column + 1] = above[column] + 1 if label == label_there else max(above[column + 1], here[column])
    pairs, row, column = [], len(one), len(other)
    while row and column:
        if one[row - 1] == other[column - 1]:
            row, column = row - 1, column - 1
            pairs.append((row, column))
        elif lengths[row - 1][column] >= lengths[row][column - 1]:
            row -= 1
        else:
            column -= 1
    return pairs[::-1]


def _jump(one: Labels, other: Labels) -> tuple[int, int] | None:
    """Returns how far to skip in one of both until they are in step again; None if that is nowhere near."""
    ahead, ahead_there = _first_like(one, other[:SURE]), _first_like(other, one[:SURE])
    if ahead is None and ahead_there is None:
        return None
    if ahead_there is None or (ahead is not None and ahead <= ahead_there):
        return ahead or 0, 0
    return 0, ahead_there


def _first_like(text: Labels, pattern: Labels) -> int | None:
    if len(pattern) < SURE or len(text) < SURE:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(text[:FAR + SURE], SURE)
    found = np.flatnonzero((windows == pattern).mean(axis=1) >= NEARLY)
    return int(found[0]) if len(found) and found[0] else None
