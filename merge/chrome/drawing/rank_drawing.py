"""Draws the collectives of ranks: slices in separate threads, with the parts inside and the ends of arrows.

Rows of only a few ranks are held at a time, because ranks are written one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from distprof.merge.chrome.drawing.drawn import PROCESS, ArrowEnd, DrawnCollective, DrawnSlice, free_lanes
from distprof.merge.spill import Parts

NO_ENDS = pl.DataFrame(schema={"place": pl.UInt32, "number": pl.Int64, "at_ns": pl.Int64, "is_start": pl.Boolean})
"""No arrow ends."""
KEY = ("group", "group_description")
ORDER = ("rank", "arrival_ns", "collective", "row")
"""Order of the rows in a part."""


class Row(NamedTuple):
    """What is drawn of a collective on a rank: columns of `MERGED_COLLECTIVES`, and where it is drawn."""

    collective: int
    step: int | None
    op: str
    group: str | None
    group_description: str | None
    group_ranks: str | None
    """As shown: `0-3`."""
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
    """Title of its thread."""
    lane: int
    """0, or the number of the extra thread on which it is drawn because it overlaps another one."""

    @property
    def waits_for(self) -> int | None:
        """The rank that came last; a receive waits for its sender."""
        return self.peer if self.op == "recv" else self.late_rank

    @property
    def name(self) -> str:
        """Like `all_reduce #42`, `send #3 to rank 1`."""
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
        """When all ranks had arrived: the rank waits until then and moves data afterwards; None if unknown."""
        return None if self.wait_ns is None or self.end_ns is None else self.arrival_ns + self.wait_ns

    @property
    def left_ns(self) -> int:
        """When the rank is shown to have left."""
        return self.arrival_ns if self.end_ns is None else max(self.end_ns, self.arrival_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDrawing:
    """What is drawn of a rank, in a compact form that is sent to a worker."""

    rows: pl.DataFrame
    """The columns of `Row`, by arrival; no categories."""
    ends: pl.DataFrame
    """Ends of arrows: `number` and `at_ns` of each, `is_start`, and its `place` in `rows`, by which they are sorted. A
    rank that is always late has as many as all others together."""
    min_duration_ns: int = 0
    """Shorter parts are left out."""
    more: Sequence[DrawnCollective] = ()
    """What is drawn after them."""

    def __iter__(self) -> Iterator[DrawnCollective]:
        for arrows, row in zip(self._arrows(), map(Row._make, self.rows.iter_rows()), strict=True):
            yield DrawnCollective(
                thread=row.thread, slice=DrawnSlice(row.name, row.arrival_ns, row.left_ns), args=_args(row),
                parts=tuple(_parts(row, self.min_duration_ns)), arrows=arrows)
        yield from self.more

    def _arrows(self) -> Iterator[tuple[ArrowEnd, ...]]:
        """Yields the arrow ends of each row."""
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


class RankRows:
    """Rows of ranks in parts, one of which is held at a time: ranks are written one after the other."""

    def __init__(self, rows: Parts, ends: Parts, part_of: Callable[[int], int]) -> None:
        """Starts with no part held.

        Args:
            rows: Rows from `shown_rows`.
            ends: Ends of arrows from `arrows_between`.
            part_of: Returns the part of a rank in both.
        """
        self._rows, self._ends, self._part_of = rows, ends, part_of
        self._held: tuple[int, dict[int, pl.DataFrame], dict[int, pl.DataFrame]] | None = None

    def settle(self, note: Callable[[pl.DataFrame], None]) -> int:
        """Assigns rows to threads, once all rows are there.

        Args:
            note: Called with the rows of each rank, by arrival.

        Returns:
            The maximum number of threads on a rank.
        """
        most = 0
        for part in self._rows.numbers:
            threaded = []
            for mine in self._rows.take(part).sort(ORDER).partition_by("rank", maintain_order=True):
                note(mine)
                threaded.append(with_threads(mine))
                most = max(most, threaded[-1].select("title", "lane").n_unique())
            self._rows.add(pl.concat(threaded), part)
        return most

    def of_rank(self, rank: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns `rows` and `ends` of a `RankDrawing`."""
        part = self._part_of(rank)
        if self._held is None or self._held[0] != part:
            self._held = None  # released before the next part is read
            self._held = part, _by_rank(self._rows.read(part)), _by_rank(self._ends.read(part))
        rows, ends = (side.get(rank) for side in self._held[1:])
        if rows is None:
            return pl.DataFrame(schema=dict.fromkeys(Row._fields, pl.Null)), NO_ENDS
        return self._as_texts(rows), NO_ENDS if ends is None else _in_place(ends, rows)

    @staticmethod
    def _as_texts(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(pl.col(pl.Categorical).cast(pl.String)).select(Row._fields)


def _in_place(ends: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    places = rows.select("row").with_row_index("place")
    return ends.join(places, on="row", how="inner").select(NO_ENDS.columns).sort("place", "number")


def _by_rank(rows: pl.DataFrame) -> dict[int, pl.DataFrame]:
    return {} if rows.is_empty() else {
        int(key[0]): mine for key, mine in rows.partition_by("rank", as_dict=True, maintain_order=True).items()}


def with_threads(mine: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows of a rank, by arrival, with `title` and `lane` of the thread that each is drawn on."""
    keys = mine.select(KEY).unique(maintain_order=True)
    titles = list(_titles(list(keys.iter_rows())))
    named = keys.with_columns(title=pl.Series(titles, dtype=pl.String), number=pl.int_range(pl.len()))
    found = mine.join(named, on=KEY, how="left", nulls_equal=True, maintain_order="left")
    starts, ends = (found[name].to_numpy() for name in ("arrival_ns", "left_ns"))
    ends = np.maximum(ends, starts + 1)  # what begins when another ends is placed after it
    lanes = list(free_lanes(found["number"].to_list(), starts.tolist(), ends.tolist()))
    return found.drop("number").with_columns(lane=pl.Series(lanes, dtype=pl.Int64))


def _titles(keys: Sequence[tuple[str | None, str | None]]) -> Iterator[str]:
    """Yields names of threads, one for each group of a rank."""
    names: dict[str, set[str | None]] = defaultdict(set)
    for group, description in keys:
        names[_described(group, description)].add(group)
    for group, description in keys:
        title = _described(group, description)
        yield " ".join(filter(None, (PROCESS, title, "" if len(names[title]) == 1 else group)))


def _described(group: str | None, description: str | None) -> str:
    return description if description and description != "undefined" else group or ""
