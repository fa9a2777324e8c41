"""Finds the key that the rows of one collective share on all ranks of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.merge.match.sequence_alignment import common_positions

NONE = -(2**63)
"""Stands for an unknown integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Columns with one value per row; the rows of a rank are in the order in which it issued them."""

    group: Integers
    """Number of the group, from 0."""
    rank: Integers
    op: Integers
    kind: Integers
    """Equal for rows of the same op and dtype."""
    size: Integers
    """Size in bytes."""
    label: Integers
    """Equal for rows that may be one collective: same op and dtype, and same size where sizes have to be equal."""
    comms_id: Integers
    group_sequence: Integers
    corrected: Integers
    """`group_sequence` less the number of sends and receives before it, which gloo also counts."""
    sequence: Integers
    step: Integers

    def __len__(self) -> int:
        return len(self.group)

    def of(self, rows: Integers) -> Calls:
        """Returns some of the rows."""
        return Calls(**{name: getattr(self, name)[rows] for name in Calls.__slots__})

    def alone(self) -> Calls:
        """Returns the rows of one group with group number 0."""
        return replace(self, group=np.zeros(len(self), np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well a key brings the rows of each group together."""

    agreeing: Integers
    """Rows per group that share key and label with other ranks; if labels of a key differ, those with the commonest."""
    contradicts: Flags
    """True for groups in which a key has different labels."""


def keys_of(calls: Calls) -> tuple[Integers, list[str]]:
    """Finds what the rows of a collective share on all ranks.

    Ids of the backend are trusted, and so are numbers if all ranks have the same ones. Numbers of gloo also count sends
    and receives, which differ between ranks, and a rank that joined late counts its own calls from 0. If numbers bring
    together rows that cannot be one collective, and the order of labels brings more rows together, the order is used.

    Returns:
        A key per row, unique within its group, and the method per group: id, sequence, label, order.
    """
    num_groups = int(calls.group.max(initial=-1)) + 1
    key, method = np.full(len(calls), NONE), ["order"] * num_groups
    is_open = np.ones(num_groups, bool)
    for name in ("comms_id", *NUMBERS):
        values = getattr(calls, name)
        is_known = is_open & (np.bincount(calls.group, values == NONE, minlength=num_groups) == 0)
        chosen = np.flatnonzero(is_known[calls.group])
        if not len(chosen):
            continue
        some = calls if len(chosen) == len(calls) else calls.of(chosen)
        found = with_occurrence(some.group, some.rank, getattr(some, name))
        settled = is_known if name == "comms_id" else is_known & _is_perfect(some, found, num_groups)
        key[chosen] = np.where(settled[some.group], found, key[chosen])
        for group in np.flatnonzero(settled).tolist():
            method[group] = "id" if name == "comms_id" else "sequence"
        is_open &= ~settled
    for group, rows in _rows_of_groups(calls, is_open):
        key[rows], method[group] = _imperfect(calls.of(rows))
    return key, method


NUMBERS = ("group_sequence", "corrected", "sequence")
"""Columns of numbers that may identify collectives, most trusted first."""


def _imperfect(calls: Calls) -> tuple[Integers, str]:
    """Returns the key and the method for a group in which rows are missing or numbers are not comparable."""
    calls = calls.alone()
    strict = replace(calls, label=_sized(calls))
    best, chosen = -1, None
    for name in NUMBERS:
        values = getattr(calls, name)
        if (values == NONE).any():
            continue
        key = with_occurrence(calls.group, calls.rank, values)
        score = score_of(strict, key, 1)
        agreeing = int(score.agreeing[0])
        is_backend = (calls.sequence == NONE).all()
        if not score.contradicts[0] and (agreeing or is_backend):
            agreeing += len(calls)  # prefer numbers without contradictions
        if agreeing > best:
            best, chosen = agreeing, key
    if chosen is not None and best >= len(calls):
        return chosen, "sequence"
    by_labels = _by_labels(calls, strict.label)
    if chosen is not None and int(score_of(strict, by_labels, 1).agreeing[0]) <= best:
        return chosen, "sequence"
    return by_labels, "order" if (calls.size == NONE).all() else "label"


def _is_perfect(calls: Calls, key: Integers, num_groups: int) -> Flags:
    """Returns whether, in each group, each key occurs exactly once on each rank that has rows, with equal labels."""
    number = dense(pack(calls.group, key))
    count = np.bincount(number)
    group, label = np.empty(len(count), np.int64), np.empty(len(count), np.int64)
    group[number], label[number] = calls.group, calls.label
    bad = count != _num_ranks(calls, num_groups)[group]
    bad[number[calls.label != label[number]]] = True
    return np.asarray(np.bincount(group[bad], minlength=num_groups) == 0)


def _rows_of_groups(calls: Calls, wanted: Flags) -> Iterator[tuple[int, Integers]]:
    if not wanted.any():
        return
    order = np.argsort(calls.group, kind="stable")
    bounds = np.searchsorted(calls.group[order], np.arange(len(wanted) + 1))
    for group in np.flatnonzero(wanted).tolist():
        yield group, order[bounds[group]:bounds[group + 1]]


def score_of(calls: Calls, key: Integers, num_groups: int) -> Score:
    """Counts what a key that no rank has twice brings together."""
    packed = pack(calls.group, key)
    order = np.lexsort((calls.label, packed))
    packed, label, group = packed[order], calls.label[order], calls.group[order]
    is_key, is_run = np.ones(len(packed), bool), np.ones(len(packed), bool)
    is_key[1:] = packed[1:] != packed[:-1]
    is_run[1:] = is_key[1:] | (label[1:] != label[:-1])
    keys, runs = np.flatnonzero(is_key), np.flatnonzero(is_run)
    count, run_count = np.diff(np.append(keys, len(packed))), np.diff(np.append(runs, len(packed)))
    most = np.maximum.reduceat(run_count, np.searchsorted(runs, keys))
    owner = group[keys]
    agreeing = np.bincount(owner, np.where(most > 1, most, 0), minlength=num_groups).astype(np.int64)
    return Score(agreeing=agreeing, contradicts=np.bincount(owner, most < count, minlength=num_groups) > 0)


def _num_ranks(calls: Calls, num_groups: int) -> Integers:
    """Returns the number of ranks that have rows, per group."""
    pair = dense(pack(calls.group, calls.rank))
    group = np.empty(pair.max() + 1, np.int64)
    group[pair] = calls.group
    return np.bincount(group, minlength=num_groups)


def pack(group: Integers, key: Integers) -> Integers:
    """Combines group and key into one integer."""
    low = int(key.min(initial=0))
    if low >= 0 and (int(group.max(initial=0)) + 1) * (int(key.max(initial=0)) + 1) < 2**62:
        return group * (int(key.max(initial=0)) + 1) + key
    return group * len(key) + dense(key)


def dense(keys: Integers) -> Integers:
    """Renumbers keys from 0 without gaps, in the same order."""
    low, high = int(keys.min(initial=0)), int(keys.max(initial=0))
    if high - low > 4 * len(keys):
        return np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)
    is_there = np.zeros(high - low + 1, bool)
    is_there[keys - low] = True
    return (np.cumsum(is_there) - 1)[keys - low]


def occurrence(keys: Integers) -> Integers:
    """Returns the number of equal keys before each key."""
    if _are_different(keys):
        return np.zeros(len(keys), np.int64)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    is_new = np.ones(len(keys), bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    place = np.arange(len(keys))
    found = np.empty(len(keys), np.int64)
    found[order] = place - np.maximum.accumulate(np.where(is_new, place, 0))
    return found


def _are_different(keys: Integers) -> bool:
    """Returns True if no key occurs twice; False also if keys are too far apart to check."""
    if int(keys.min(initial=0)) < 0 or int(keys.max(initial=0)) > 64 * len(keys):
        return False
    is_there = np.zeros(int(keys.max(initial=0)) + 1, bool)
    is_there[keys] = True
    return int(np.count_nonzero(is_there)) == len(keys)


def with_occurrence(group: Integers, rank: Integers, key: Integers) -> Integers:
    """Combines a key with its count of occurrences on the rank: ops that are issued as one share a number."""
    number = dense(key)
    again = occurrence(pack(rank, pack(group, number)))
    return number * (int(again.max(initial=0)) + 1) + again


def _by_labels(calls: Calls, sized: Integers) -> Integers:
    """Returns places in the common order of op, type and size, or of ops alone if that leaves most rows unmatched."""
    found = [_aligned(calls, sized)]
    if 2 * score_of(calls, found[0], 1).agreeing[0] < len(calls):
        found.append(_aligned(calls, calls.op))
    return max(found, key=lambda key: int(score_of(replace(calls, label=calls.op), key, 1).agreeing[0]))


def _sized(calls: Calls) -> Integers:
    """Returns a number per op, type and size; without the size for ops whose sizes differ between ranks."""
    label = pack(calls.kind, calls.size)
    even = np.zeros(len(calls), bool)
    for kind in np.unique(calls.kind).tolist():
        rows = np.flatnonzero(calls.kind == kind)
        rank, size = calls.rank[rows], calls.size[rows]
        pairs = np.unique(np.stack([size, rank]), axis=1)
        sizes, on = np.unique(pairs[0], return_counts=True)
        shared = (on > 1)[np.searchsorted(sizes, size)]
        # the rank with most rows may have some that all others lost
        others = shared[rank != np.argmax(np.bincount(rank))]
        even[rows] = not len(others) or others.mean() >= 0.5
    return np.where(even, label, -1 - calls.kind)


def _aligned(calls: Calls, labels: Integers) -> Integers:
    """Aligns the sequences of labels of the ranks, step by step if steps are known."""
    key = np.empty(len(calls), np.int64)
    taken = 0
    steps = np.zeros(len(calls), np.int64) if (calls.step == NONE).any() else calls.step
    for step in np.unique(steps).tolist():
        rows = np.flatnonzero(steps == step)
        of_ranks = [rows[calls.rank[rows] == rank] for rank in np.unique(calls.rank[rows]).tolist()]
        places = common_positions([labels[mine] for mine in of_ranks])
        _unswap([labels[mine] for mine in of_ranks], places)
        for mine, place in zip(of_ranks, places, strict=True):
            key[mine] = taken + place
        taken += 1 + max(int(place.max()) for place in places)
    return key


def _unswap(labels: Sequence[Integers], places: Sequence[Integers]) -> None:
    """Brings together what ranks have in different orders, because threads of gloo pick up ops in any order.

    If all ranks have a label equally often, and some of these at places of their own, the k-th ones are one collective.

    Args:
        labels: Labels of each rank.
        places: Their places in the common order; changed in place.
    """
    every = np.concatenate(labels)
    alone = np.bincount(np.concatenate(places))[np.concatenate(places)] < len(labels)
    for label in np.unique(every[alone]).tolist():
        of_ranks = [np.flatnonzero(mine == label) for mine in labels]
        if len({len(mine) for mine in of_ranks}) == 1:
            common = places[0][of_ranks[0]].copy()
            for mine, place in zip(of_ranks, places, strict=True):
                place[mine] = common
