"""Matches and measures the collectives of many ranks part by part; gives them in pieces, in order, from files."""

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
"""What collectives are numbered by: the first arrival; of equal ones the first row of the lowest rank."""


@dataclass(slots=True, kw_only=True)
class _Measuring:
    """What is known of all collectives while they are measured part by part."""

    clock: Clock
    hosts: Mapping[int, Hashable]
    measured: Parts
    """Rows of each part; collectives are numbered within it."""
    order: list[pl.DataFrame] = field(default_factory=list)
    """A row per collective of each part: `ORDER`, and how many rows it has."""
    certain: list[pl.DataFrame] = field(default_factory=list)
    others: list[pl.DataFrame | None] = field(default_factory=list)
    """What they say of the clock: None where it may be wrong."""

    num_differing: int = 0
    """Collectives about which ranks disagree."""

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
        """What the collectives say of the clock."""
        others = [one for one in self.others if one is not None]
        return checked([*self.certain, *(others if len(others) == len(self.others) else ())], self.clock)

    def numbered(self, held_rows: int) -> pl.DataFrame:
        """A row per collective of each part, in that order: its `number` among all, and the `piece` it belongs to."""
        every = pl.concat([one.with_columns(part=pl.lit(part)) for part, one in enumerate(self.order)])
        ordered = every.with_row_index("place").sort(ORDER, nulls_last=True).with_columns(
            number=pl.int_range(pl.len(), dtype=pl.Int64),
            piece=((pl.col("rows").cum_sum() - 1) // held_rows).cast(pl.Int64))
        return ordered.sort("place").select("part", "first_ns", "number", "piece")


def measured_parts(rows: RowParts, clock: Clock, hosts: Mapping[int, Hashable], folder: Path) -> tuple[
        CollectivePieces, Check, int]:
    """The merged table, what it says of the clock, and the number of collectives about which ranks disagree.

    Args:
        rows: Of all ranks.
        clock: That brings them together; it was not made of collectives, and knows all ranks.
        hosts: The machine of a rank; None or not there where it is not known.
        folder: Takes in files.
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
    """`MERGED_COLLECTIVES` in pieces of whole collectives, in their order; texts and lists of ranks are categories."""

    frames: Iterable[pl.DataFrame]
    """The pieces, as often as they are asked for."""
    num_rows: int
    """Of all pieces."""
    begins_ns: Sequence[int] = ()
    """First arrival in each piece but the first, ascending."""
    folder: Path | None = None
    """Where files can be made of what is made of them; None: they are few enough to be held."""

    @classmethod
    def held(cls, rows: pl.DataFrame) -> CollectivePieces:
        """All in one piece."""
        return cls(frames=(rows,), num_rows=len(rows))

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return iter(self.frames)

    def where(self, kept: pl.Expr) -> CollectivePieces:
        """The rows for which an expression is true."""
        return replace(self, frames=_Where(frames=self.frames, kept=kept))

    def whole(self) -> pl.DataFrame:
        """All rows, in memory."""
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
    """Rows in any order, with a column for their order in a rank."""
    order: Sequence[str]

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for number in self.parts.numbers:
            yield self.parts.read(number).sort(self.order, maintain_order=True).drop(self.order[-1])
