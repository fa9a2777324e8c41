"""Matches and measures the collectives of many ranks part by part, and yields them in order, in pieces from files."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from distprof.merge.clock.by_collectives import apart, checked, synchronising_apart
from distprof.merge.clock.model import Check, Clock
from distprof.merge.cost.measures import measured_collectives
from distprof.merge.match.matched_run import ISSUED, RowParts
from distprof.merge.match.mismatches import num_mismatches
from distprof.merge.spill import Parts

ORDER = ("first_ns", "first_rank", ISSUED)
"""Columns by which collectives are numbered: the first arrival; of equal ones the lowest rank, then its first row."""


@dataclass(slots=True, kw_only=True)
class _Measuring:
    """What is known of all collectives while they are measured part by part."""

    clock: Clock
    hosts: Mapping[int, Hashable]
    measured: Parts
    """Rows of each part; collectives are numbered within the part."""
    order: list[pl.DataFrame] = field(default_factory=list)
    """Per part a frame with a row per collective: `ORDER`, and its number of rows."""
    certain: list[pl.DataFrame] = field(default_factory=list)
    others: list[pl.DataFrame | None] = field(default_factory=list)
    """Per part what its inferred matches tell about the clock; None if they may be wrong."""

    num_differing: int = 0
    """Number of collectives about which ranks disagree."""

    def add(self, matched: pl.DataFrame) -> None:
        """Measures the collectives of a part."""
        self.num_differing += num_mismatches(matched)
        certain, others = synchronising_apart(matched)
        self.certain.append(apart(certain, self.clock))
        self.others.append(None if others is None else apart(others, self.clock))
        rows = measured_collectives(matched, self.clock, self.hosts)
        self.measured.add(rows, len(self.order))
        self.order.append(rows.group_by("collective", maintain_order=True).agg(
            pl.coalesce("start_ns", "enqueue_ns").min().alias("first_ns"), pl.col("rank").first().alias("first_rank"),
            pl.col(ISSUED).first(), pl.len().alias("rows")).drop("collective"))

    @property
    def check(self) -> Check:
        """The clock, checked against all collectives."""
        others = [one for one in self.others if one is not None]
        return checked([*self.certain, *(others if len(others) == len(self.others) else ())], self.clock)

    def numbered(self, held_rows: int) -> pl.DataFrame:
        """Returns a row per collective of each part, in that order: its `number` among all, and its `piece`."""
        every = pl.concat([one.with_columns(part=pl.lit(part)) for part, one in enumerate(self.order)])
        ordered = every.with_row_index("place").sort(ORDER, nulls_last=True).with_columns(
            number=pl.int_range(pl.len(), dtype=pl.Int64),
            piece=((pl.col("rows").cum_sum() - 1) // held_rows).cast(pl.Int64))
        return ordered.sort("place").select("part", "first_ns", "number", "piece")


def measured_parts(rows: RowParts, clock: Clock, hosts: Mapping[int, Hashable], folder: Path) -> tuple[
        CollectivePieces, Check, int]:
    """Returns the merged table, the check of the clock, and the number of collectives about which ranks disagree.

    Args:
        rows: Rows of all ranks.
        clock: The common clock. It was not estimated from collectives and knows all ranks.
        hosts: Rank -> its machine; None or missing if not known.
        folder: Folder for temporary files.
    """
    measuring = _Measuring(clock=clock, hosts=hosts, measured=Parts(folder, "measured"))
    for matched in rows.matched():
        measuring.add(matched)
    numbered, pieces = measuring.numbered(rows.held_rows), Parts(folder, "collectives")
    for (part,), mine in numbered.group_by("part", maintain_order=True):
        found = measuring.measured.take(int(part))
        local = found["collective"].to_numpy()
        pieces.add(found.with_columns(mine["number"][local].alias("collective")), mine["piece"].to_numpy()[local])
    begins = numbered.group_by("piece").agg(pl.col("first_ns").min()).sort("piece")["first_ns"][1:].drop_nulls()
    return CollectivePieces(
        frames=PiecesOnDisk(parts=pieces, order=("collective", "rank", ISSUED)), num_rows=len(pieces),
        begins_ns=begins.to_list(), folder=folder), measuring.check, measuring.num_differing


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePieces:
    """`MERGED_COLLECTIVES` in pieces of whole collectives, in order; texts and lists of ranks are categories."""

    frames: Iterable[pl.DataFrame]
    """The pieces; can be iterated repeatedly."""
    num_rows: int
    """Number of rows of all pieces."""
    begins_ns: Sequence[int] = ()
    """First arrival in each piece but the first, ascending."""
    folder: Path | None = None
    """Folder for files that are derived from the pieces; None if the pieces are few enough to be held in memory."""

    @classmethod
    def held(cls, rows: pl.DataFrame) -> CollectivePieces:
        """Wraps rows as a single piece."""
        return cls(frames=(rows,), num_rows=len(rows))

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return iter(self.frames)

    def where(self, kept: pl.Expr) -> CollectivePieces:
        """Returns the rows for which an expression is true."""
        return replace(self, frames=_Where(frames=self.frames, kept=kept))

    def whole(self) -> pl.DataFrame:
        """Returns all rows, in memory."""
        return pl.concat(list(self), rechunk=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    frames: Iterable[pl.DataFrame]
    kept: pl.Expr

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return (frame.filter(self.kept) for frame in self.frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecesOnDisk:
    """Reads pieces from files, one after the other."""

    parts: Parts
    """Rows in any order, with a column for their order within the rank."""
    order: Sequence[str]

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for number in self.parts.numbers:
            yield self.parts.read(number).sort(self.order, maintain_order=True).drop(self.order[-1])
