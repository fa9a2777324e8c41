"""The parts of ranks in collectives, as a graph needs them, with roots that wait for the other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Flags, Integers
from distprof.contract.collective_ops import COLLECTIVE_OPS, POINT_TO_POINT
from distprof.merge.replay.graph import Parts

CLEAR = 2
"""A collective shows whether senders wait if the sender came more than this many times the shortest duration of the op
before the other side."""


def meeting_roots(table: pl.DataFrame, op: Integers, rooted: Flags, is_root: Flags, sends: Flags) -> Integers:
    """Returns the row of the root for each row of a collective in which nobody sends before the other side is there.

    Whether a backend sends into buffers or waits for the receiver depends on the backend, the op and its size.
    Collectives in which one side came long before the other show it, and most of these decide for the op. If none shows
    it, the op is assumed to send into buffers.

    Args:
        table: Rows with `collective`, `arrival_ns`, `end_ns`, `timed_by` and, if recorded, `wait_end_ns`.
        op: Number of the op of each row.
        rooted: True for rows of ops that begin at the root or end there.
        is_root: True for rows of roots.
        sends: True for rows whose rank sends.

    Returns:
        Indices of rows; -1 for rows of all other ops, and of collectives with unknown roots.
    """
    found = np.full(len(table), -1, np.int64)
    rows = np.flatnonzero(rooted)
    if not len(rows):
        return found
    number, collective = np.unique(table["collective"].to_numpy()[rows], return_inverse=True)
    root = np.full(len(number), -1, np.int64)
    root[collective[is_root[rows]]] = rows[is_root[rows]]
    waits = _senders_stay(table, rows, collective, root, is_root[rows], sends[rows], op[rows])
    meets = (root[collective] >= 0) & waits[op[rows]]
    found[rows[meets]] = root[collective[meets]]
    return found


def _senders_stay(table: pl.DataFrame, rows: Integers, collective: Integers, root: Integers, is_root: Flags,
                  sends: Flags, op: Integers) -> Flags:
    """Returns, by op, whether most senders that came long before the other side stayed until it was there."""
    start, end = table["arrival_ns"].to_numpy()[rows], _ends(table)[rows]
    last = np.full(len(root), np.iinfo(np.int64).min)
    np.maximum.at(last, collective[~is_root], start[~is_root])
    other = np.where(is_root, last[collective], table["arrival_ns"].to_numpy()[root[collective]])
    shortest = np.full(int(op.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, op, np.maximum(end - start, 0))
    took, gap = end - start, other - start
    clear = sends & (root[collective] >= 0) & (gap > CLEAR * shortest[op])
    # a sender leaves `shortest` after its start or after the gap; slightly wrong clocks do not change which one is
    # closer
    stayed = 2 * took > gap + shortest[op]
    both = [np.bincount(op[clear & (stayed == how)], minlength=len(shortest)) for how in (True, False)]
    return both[0] > both[1]


def _ends(table: pl.DataFrame) -> Integers:
    """Returns the ends of parts; where they may be recorded late, at most the end of a thread's wait for them."""
    if "wait_end_ns" not in table.columns:
        return table["end_ns"].to_numpy()
    return table.select(pl.min_horizontal("end_ns", "wait_end_ns"))["end_ns"].to_numpy()


def ops_of(table: pl.DataFrame) -> Any:
    """Returns a number per row for its op and the size of its group; negative for messages of two ranks."""
    sizes = table["num_ranks"].fill_null(0).to_numpy()
    op, names = _codes(table["op"])
    found = op * (int(sizes.max(initial=0)) + 1) + sizes
    return np.where(_is_in(op, names, POINT_TO_POINT), -1 - found, found)


def _codes(texts: pl.Series) -> tuple[Integers, list[str]]:
    """Returns a number for each text, and the texts by number."""
    coded = (texts.fill_null("") if texts.null_count() else texts).cast(pl.Categorical)
    known, codes = numbered(coded.to_physical().to_numpy().astype(np.int64))
    first = np.empty(len(known), np.int64)
    first[codes] = np.arange(len(codes))
    return codes, coded.gather(first).cast(pl.String).to_list()


def _is_in(codes: Integers, names: Sequence[str], wanted: Sequence[str]) -> Flags:
    return np.isin(codes, [number for number, name in enumerate(names) if name in wanted])


def parts_of(table: pl.DataFrame, ops: Integers) -> tuple[Parts, Integers]:
    """Returns parts, one per row, and pairs of a join and a part that leads it; `ops` is from `ops_of`."""
    op, names = _codes(table["op"])
    rank, peer = table["rank"].to_numpy(), table["peer"].fill_null(-1).to_numpy()
    collective = table["collective"].to_numpy()
    from_root, to_root = (_is_in(op, names, ops) & (peer >= 0) for ops in (FROM_ROOT, TO_ROOT))
    is_root = rank == peer
    root = meeting_roots(table, ops, from_root | to_root, is_root, from_root == is_root)
    from_root, to_root = (some & (root < 0) for some in (from_root, to_root))
    pair = _is_in(op, names, POINT_TO_POINT)
    sent = _is_in(op, names, ("send",)) & _is_buffered(table, collective)
    received = pair & np.isin(collective, collective[sent]) & ~sent
    alone = from_root | to_root | sent | received
    join = np.where(alone, np.arange(len(rank)) + int(collective.max(initial=-1)) + 1, collective)
    group = _codes(table["group"])[0]
    queue = numbered(rank * (int(group.max(initial=0)) + 1) + group)[1]
    parts = Parts(queue=np.where(pair, -1, queue), join=numbered(join)[1],
                  start_ns=table["arrival_ns"].to_numpy(), end_ns=table["end_ns"].to_numpy(),
                  root=np.where(is_root, -1, root), op=collective,
                  noted_late=(table["timed_by"] == "future").fill_null(value=False).to_numpy())
    leads = np.concatenate((_led(collective, from_root & ~is_root, from_root & is_root),
                            _led(collective, to_root & is_root, to_root & ~is_root),
                            _led(collective, received, sent)))
    leads[:, 0] = parts.join[leads[:, 0]]
    return parts, leads[np.argsort(leads[:, 0], kind="stable")]


def _is_buffered(table: pl.DataFrame, collective: Integers) -> Flags:
    """Returns True for parts that ended before another part of their collective began."""
    last = np.full(int(collective.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, collective, table["arrival_ns"].to_numpy())
    return np.asarray(table["end_ns"].to_numpy() < last[collective])


FROM_ROOT, TO_ROOT = (tuple(name for name, op in COLLECTIVE_OPS.items() if op.begins == which)
                      for which in ("from root", "to root"))
"""Ops that begin at their root, and ops that end at it."""


def _led(collective: Integers, led: Flags, leads: Flags) -> Integers:
    """Returns pairs of parts of one collective: a led part and a part that leads it."""
    if not led.any():
        return np.empty((0, 2), np.int64)
    one = pl.DataFrame({"collective": collective[led], "led": np.flatnonzero(led)})
    other = pl.DataFrame({"collective": collective[leads], "leads": np.flatnonzero(leads)})
    return one.join(other, on="collective").select("led", "leads").to_numpy().astype(np.int64).reshape(-1, 2)


def numbered(keys: Integers) -> tuple[Integers, Integers]:
    """Returns the distinct keys (nonnegative), ascending, and the index of each key among them."""
    there = np.zeros(int(keys.max(initial=-1)) + 1, bool)
    there[keys] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[keys]
