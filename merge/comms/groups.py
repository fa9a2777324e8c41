"""The same collective on all ranks of a group: rows as integers come in, a key that they share goes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distprof.merge.comms.resync import common_positions

Integers = npt.NDArray[np.int64]
NONE = -(2**63)
"""Where an integer is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Columns of rows, a value a row; the rows of a rank stand in the order in which it issued them."""

    group: Integers
    """From 0."""
    rank: Integers
    op: Integers
    kind: Integers
    """Equal where op and dtype are."""
    size: Integers
    """Bytes."""
    label: Integers
    """Equal where two ranks may be in one collective: op and dtype are, and size where it has to be."""
    comms_id: Integers
    group_sequence: Integers
    corrected: Integers
    """`group_sequence` without the sends and receives before it, which gloo counts too."""
    sequence: Integers
    step: Integers

    def __len__(self) -> int:
        return len(self.group)

    def of(self, rows: Integers) -> Calls:
        """Some rows."""
        return Calls(**{name: getattr(self, name)[rows] for name in Calls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well a key brings the rows of each group together."""

    agreeing: Integers
    """Rows whose key other ranks have too, with equal labels."""
    is_perfect: npt.NDArray[np.bool_]
    """True where every key is on every rank that has rows, once, with equal labels."""
    contradicts: npt.NDArray[np.bool_]
    """True where a key has different labels on two ranks."""


def keys_of(calls: Calls) -> tuple[Integers, list[str]]:
    """Finds what the rows of a collective share on all ranks.

    Ids of the backend are believed. Sequence numbers are, where no order of labels brings more rows together: those of
    gloo count sends and receives too, which are each rank's own.

    Returns:
        A key a row, within its group, and the method a group: id, sequence, label, order.
    """
    num_groups = int(calls.group.max(initial=-1)) + 1
    key, method = np.full(len(calls), NONE), ["order"] * num_groups
    best = np.full(num_groups, -1, np.int64)
    is_open = np.ones(num_groups, bool)
    believed = np.zeros(num_groups, bool)
    for name, values in (("id", calls.comms_id), ("sequence", calls.group_sequence), ("sequence", calls.corrected),
                         ("sequence", calls.sequence)):
        is_known = np.bincount(calls.group, values == NONE, minlength=num_groups) == 0
        chosen = np.flatnonzero((is_open & is_known)[calls.group])
        if not len(chosen):
            continue
        some = calls.of(chosen)
        found = _with_occurrence(some.group, some.rank, values[chosen])
        score = score_of(some, found, num_groups)
        better = is_open & is_known & (score.agreeing > best)
        key[chosen] = np.where(better[some.group], found, key[chosen])
        best[better] = score.agreeing[better]
        for group in np.flatnonzero(better).tolist():
            method[group] = name
        if name == "id":
            is_open &= ~is_known
        elif values is calls.group_sequence:
            # numbers that only count what all ranks call are kept while nothing contradicts them
            believed |= is_known & ~score.contradicts & (calls.sequence[_firsts(calls.group, num_groups)] == NONE)
        is_open &= ~(is_known & score.is_perfect) & ~believed
    for group, rows in _rows_of_groups(calls, is_open):
        some = calls.of(rows)
        by_labels = _by_labels(some)
        if _agreeing(some, by_labels) > best[group]:
            key[rows], method[group] = by_labels, "order" if (some.size == NONE).all() else "label"
    return key, method


def _firsts(group: Integers, num_groups: int) -> Integers:
    first = np.zeros(num_groups, np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]
    return first


def _rows_of_groups(calls: Calls, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[int, Integers]]:
    order = np.argsort(calls.group, kind="stable")
    bounds = np.searchsorted(calls.group[order], np.arange(len(wanted) + 1))
    for group in np.flatnonzero(wanted).tolist():
        yield group, order[bounds[group]:bounds[group + 1]]


def score_of(calls: Calls, key: Integers, num_groups: int) -> Score:
    """Counts what a key brings together."""
    packed = pack(calls.group, key)
    order = np.lexsort((calls.rank, packed))
    packed, rank, label, group = packed[order], calls.rank[order], calls.label[order], calls.group[order]
    is_new = np.ones(len(packed), bool)
    is_new[1:] = packed[1:] != packed[:-1]
    starts = np.flatnonzero(is_new)
    twice = np.zeros(len(packed), bool)
    twice[1:] = ~is_new[1:] & (rank[1:] == rank[:-1])
    count = np.diff(np.append(starts, len(packed)))
    alike = np.minimum.reduceat(label, starts) == np.maximum.reduceat(label, starts)
    once = ~np.logical_or.reduceat(twice, starts)
    owner = group[starts]
    good = alike & once
    agreeing = np.bincount(owner, np.where(good & (count > 1), count, 0), minlength=num_groups).astype(np.int64)
    bad = ~good | (count != _num_ranks(calls, num_groups)[owner])
    return Score(agreeing=agreeing, is_perfect=np.bincount(owner, bad, minlength=num_groups) == 0,
                 contradicts=np.bincount(owner, ~alike, minlength=num_groups) > 0)


def _agreeing(calls: Calls, key: Integers) -> int:
    zero = np.zeros(len(calls), np.int64)
    alone = Calls(**{name: getattr(calls, name) for name in Calls.__slots__ if name != "group"}, group=zero)
    return int(score_of(alone, key, 1).agreeing[0])


def _num_ranks(calls: Calls, num_groups: int) -> Integers:
    """Ranks that have rows, a group."""
    pairs = np.unique(pack(calls.group, calls.rank))
    span = int(calls.rank.max()) + 1
    return np.bincount(pairs // span, minlength=num_groups)


def pack(group: Integers, key: Integers) -> Integers:
    """One integer for both."""
    low = int(key.min(initial=0))
    if low >= 0 and (int(group.max(initial=0)) + 1) * (int(key.max(initial=0)) + 1) < 2**62:
        return group * (int(key.max(initial=0)) + 1) + key
    return group * len(key) + np.unique(key, return_inverse=True)[1].reshape(-1)


def occurrence(keys: Integers) -> Integers:
    """How many equal ones are before each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    is_new = np.ones(len(keys), bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    place = np.arange(len(keys))
    found = np.empty(len(keys), np.int64)
    found[order] = place - np.maximum.accumulate(np.where(is_new, place, 0))
    return found


def _with_occurrence(group: Integers, rank: Integers, key: Integers) -> Integers:
    """The key, and its count where a rank has it several times: ops that are issued as one share a number."""
    dense = np.unique(key, return_inverse=True)[1].reshape(-1).astype(np.int64)
    again = occurrence(pack(pack(group, dense), rank))
    return dense * (int(again.max(initial=0)) + 1) + again


def _by_labels(calls: Calls) -> Integers:
    """Places in the common order: by op, type and size where sizes are alike on the ranks, else by less."""
    found = [_aligned(calls, labels) for labels in (_sized(calls), calls.label, calls.op)]
    return max(found, key=lambda key: _agreeing(calls, key))


def _sized(calls: Calls) -> Integers:
    """A number for op, type and size, without the size where most sizes of an op are not on all ranks."""
    label = pack(calls.kind, calls.size)
    even = np.zeros(len(calls), bool)
    for kind in np.unique(calls.kind).tolist():
        rows = np.flatnonzero(calls.kind == kind)
        pairs = np.unique(np.stack([calls.size[rows], calls.rank[rows]]), axis=1)
        on = np.unique(pairs[0], return_counts=True)[1]
        even[rows] = 2 * np.count_nonzero(on == len(np.unique(pairs[1]))) >= len(on)
    return np.where(even, label, -1 - calls.kind)


def _aligned(calls: Calls, labels: Integers) -> Integers:
    """Step by step where steps are known."""
    key = np.empty(len(calls), np.int64)
    taken = 0
    steps = np.zeros(len(calls), np.int64) if (calls.step == NONE).any() else calls.step
    for step in np.unique(steps).tolist():
        rows = np.flatnonzero(steps == step)
        of_ranks = [rows[calls.rank[rows] == rank] for rank in np.unique(calls.rank[rows]).tolist()]
        places = common_positions([labels[mine] for mine in of_ranks])
        for mine, place in zip(of_ranks, places, strict=True):
            key[mine] = taken + place
        taken += 1 + max(int(place.max()) for place in places)
    return key
