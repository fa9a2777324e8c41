"""Draws the collectives of one rank: slices in threads of their own, with the parts inside and the ends of arrows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from distprof.merge.chrome.drawing.drawn import ArrowEnd, DrawnCollective, DrawnSlice

NO_ENDS = pl.DataFrame(schema={"place": pl.UInt32, "number": pl.Int64, "at_ns": pl.Int64, "is_start": pl.Boolean})
"""No arrow begins or ends."""


class Row(NamedTuple):
    """What is drawn of a collective on a rank: columns of `MERGED_COLLECTIVES`, and where it is drawn."""

    collective: int
    step: int | None
    op: str
    group: str | None
    group_description: str | None
    group_ranks: str | None
    """As they are shown: `0-3`."""
    sequence: int | None
    size_bytes: int | None
    dtype: str | None
    peer: int | None
    module_path: str | None
    phase: str | None
    late_rank: int | None
    unsure: bool | None
    arrival_ns: int
    end_ns: int | None
    wait_ns: int | None
    transfer_ns: int | None
    busbw: float | None
    title: str
    """Of its thread."""
    lane: int
    """0, or the number of the thread beside it, where it overlaps another."""

    @property
    def waits_for(self) -> int | None:
        """The rank that came last; a receive waits for its sender."""
        return self.peer if self.op == "recv" else self.late_rank

    @property
    def name(self) -> str:
        """`all_reduce #42`, `send #3 to rank 1`."""
        number = "" if self.sequence is None else f" #{self.sequence}"
        other = {"send": f" to rank {self.peer}", "recv": f" from rank {self.peer}"}.get(self.op, "")
        return f"{self.op}{number}{other if self.peer is not None else ''}"

    @property
    def thread(self) -> str:
        """Name of the thread."""
        number = f" {self.lane}" if self.lane > 1 else ""
        return f"{self.title} (overlapping{number})" if self.lane else self.title

    @property
    def come_ns(self) -> int | None:
        """When all were there: the rank waits until then and moves from then on."""
        return None if self.wait_ns is None or self.end_ns is None else self.arrival_ns + self.wait_ns

    @property
    def left_ns(self) -> int:
        """When the rank is shown to have left."""
        return self.arrival_ns if self.end_ns is None else max(self.end_ns, self.arrival_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDrawing:
    """What is drawn of a rank, in a form that is small, and that travels to a worker."""

    rows: pl.DataFrame
    """The columns of `Row`, by arrival; no categories."""
    ends: pl.DataFrame
    """Of arrows: `number` and `at_ns` of each, `is_start`, and its `place` in `rows`, by which they are in order. A
    rank that is always late has as many as all others have."""
    min_duration_ns: int = 0
    """Shorter parts are left out."""
    more: Sequence[DrawnCollective] = ()
    """What is drawn behind them."""

    def __iter__(self) -> Iterator[DrawnCollective]:
        for arrows, row in zip(self._arrows(), map(Row._make, self.rows.iter_rows()), strict=True):
            yield DrawnCollective(
                thread=row.thread, slice=DrawnSlice(row.name, row.arrival_ns, row.left_ns), args=_args(row),
                parts=tuple(_parts(row, self.min_duration_ns)), arrows=arrows)
        yield from self.more

    def _arrows(self) -> Iterator[tuple[ArrowEnd, ...]]:
        """Of each row."""
        ends = self.ends.select("is_start", "number", "at_ns").iter_rows()
        for count in np.bincount(self.ends["place"].to_numpy(), minlength=len(self.rows)).tolist():
            yield tuple(ArrowEnd("s" if is_start else "f", number, at_ns)
                        for is_start, number, at_ns in islice(ends, count))


def _parts(row: Row, min_duration_ns: int) -> Iterator[DrawnSlice]:
    come_ns = row.come_ns
    if come_ns is None:
        return
    who = "" if row.unsure or row.waits_for is None else f" for rank {row.waits_for}"
    for part in (DrawnSlice(f"waiting{who}", row.arrival_ns, come_ns), DrawnSlice("moving", come_ns, row.left_ns)):
        if part.end_ns - part.start_ns >= max(min_duration_ns, 1):
            yield part


def _args(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {
        "group": row.group_description or row.group, "group name": row.group,
        "ranks": row.group_ranks, "bytes": row.size_bytes,
        "dtype": row.dtype, "step": row.step, "module": row.module_path, "phase": row.phase,
        "late rank": None if row.unsure else row.late_rank,
        "wait_us": None if row.wait_ns is None else row.wait_ns / 1000,
        "transfer_us": None if row.transfer_ns is None else row.transfer_ns / 1000,
        "busbw_GB_per_s": None if row.busbw is None else round(row.busbw / 1e9, 6), "collective": row.collective,
        "end": "not known" if row.end_ns is None else None,
    }
    return {name: value for name, value in found.items() if value is not None}
