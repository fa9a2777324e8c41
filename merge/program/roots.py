"""Roots of collectives that meet the other ranks, as far as times show it."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

CLEAR = 2
"""The side that sends came so many times earlier than an op takes to move, where it shows whether it waits."""


def meeting_roots(table: pl.DataFrame, op: Any, rooted: Any, is_root: Any, sends: Any) -> Any:
    """Of each row, the row of the root of its collective, for ops in which nobody sends before the other side is there.

    Whether a backend sends into buffers or waits for who receives depends on the backend, the op and its size. It
    shows where one side came long before the other: most of such collectives decide for the op. An op in which it never
    shows sends into buffers.

    Args:
        table: Rows with `collective`, `arrival_ns`, `end_ns`, `timed_by` and, where it was recorded, `wait_end_ns`.
        op: A number for the op of each row.
        rooted: True for rows of ops that begin from the root or end in it.
        is_root: True for rows of roots.
        sends: True for rows whose rank sends.

    Returns:
        Indices of rows; -1 for rows of all other ops, and of collectives whose root is not known.
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


def _senders_stay(table: pl.DataFrame, rows: Any, collective: Any, root: Any, is_root: Any, sends: Any,
                  op: Any) -> Any:
    """By op, true where most senders that came long before the other side stayed until it was there."""
    start, end = table["arrival_ns"].to_numpy()[rows], _ends(table)[rows]
    last = np.full(len(root), np.iinfo(np.int64).min)
    np.maximum.at(last, collective[~is_root], start[~is_root])
    other = np.where(is_root, last[collective], table["arrival_ns"].to_numpy()[root[collective]])
    shortest = np.full(int(op.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, op, np.maximum(end - start, 0))
    took, gap = end - start, other - start
    clear = sends & (root[collective] >= 0) & (gap > CLEAR * shortest[op])
    # it leaves `shortest` after its own start or after the gap: clocks that are a little off do not change which
    stayed = 2 * took > gap + shortest[op]
    both = [np.bincount(op[clear & (stayed == how)], minlength=len(shortest)) for how in (True, False)]
    return both[0] > both[1]


def _ends(table: pl.DataFrame) -> Any:
    """Ends of parts; where they may have been noted late, no later than a thread had waited for them."""
    if "wait_end_ns" not in table.columns:
        return table["end_ns"].to_numpy()
    return table.select(pl.min_horizontal("end_ns", "wait_end_ns"))["end_ns"].to_numpy()
