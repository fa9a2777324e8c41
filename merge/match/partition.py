"""Chooses the part in which each row is matched: all rows of a collective, or of messages of two ranks, share a part.

Which number identifies the collectives of a large group is found without holding its rows: evidence is summed rank by
rank. The rules are those of `groups.py`, as far as counts of rows suffice to follow them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.contract.collective_ops import EQUAL_INPUTS, POINT_TO_POINT
from distprof.merge.match.groups import NUMBERS
from distprof.merge.match.matching import Placed
from distprof.merge.run.group_ranks import SIZE

GROUP = ("group", "group_ranks")
"""Columns that identify a process group."""
_FAR = 1_000_003
"""A prime that distributes pairs of ranks over parts."""
SIZED = "sized"
"""Column with the bytes of ops whose inputs have to be equal; null for others."""
KIND = ("op", "dtype")
"""Columns that tell which op a row is."""
KEY = ("number", "again")
"""Columns of a key: a number, and how many rows of the rank with the same number come before."""
COUNTED = (*KEY, *KIND, "size_bytes", SIZED)
"""Columns by which rows are counted."""
ROOM = 1 << 17
"""Number of counts after which they are summed."""


class Partition:
    """Puts process groups into parts of about the same number of rows; a larger group gets a part of its own.

    The number of rows of a group is known only after all ranks are read. It is estimated as the most rows that a rank
    has in the first batch with the group, times the number of members.
    """

    def __init__(self, num_rows: int, held_rows: int, world_size: int) -> None:
        """Creates a partition without groups.

        Args:
            num_rows: Approximate number of rows of all ranks.
            held_rows: Number of rows that a part should have.
            world_size: Number of ranks of the job.
        """
        self._held_rows, self._world_size = held_rows, world_size
        self._num_of_pairs = max(1, -(-num_rows // held_rows))
        """Sends and receives are in this many parts, the first ones."""
        self._groups = pl.DataFrame(schema={"group": pl.Categorical, "group_ranks": pl.Categorical, "part": pl.Int64})
        self._next = self._num_of_pairs
        self._open, self._room = 0, 0
        """The part that new groups are added to, and how many more rows it takes."""
        self.large = set[int]()
        """Parts that consist of one large group."""

    def parts_of(self, rows: pl.DataFrame) -> Integers:
        """Returns the part of each row, int64.

        Args:
            rows: All rows of some ranks, with at least `GROUP`, op, rank and peer.
        """
        self._meet(rows)
        found = rows.select(GROUP).join(self._groups, on=GROUP, how="left", nulls_equal=True, maintain_order="left")
        is_pair = rows["op"].is_in(POINT_TO_POINT).to_numpy()
        return np.where(is_pair, self._of_pairs(rows), found["part"].to_numpy())

    def _of_pairs(self, rows: pl.DataFrame) -> Any:
        rank = rows["rank"].to_numpy()
        peer = rows.select(pl.col("peer").fill_null(pl.col("rank")))["peer"].to_numpy()
        return (np.minimum(rank, peer) * _FAR + np.maximum(rank, peer)) % self._num_of_pairs

    def _meet(self, rows: pl.DataFrame) -> None:
        """Assigns parts to new groups."""
        each = rows.group_by(*GROUP, "rank", maintain_order=True).agg(pl.len(), pl.col(SIZE).first()).group_by(
            *GROUP, maintain_order=True).agg(pl.col("len").max(), pl.col(SIZE).first())
        new = each.join(self._groups, on=GROUP, how="anti", nulls_equal=True, maintain_order="left")
        if new.is_empty():
            return
        members = new[SIZE].fill_null(self._world_size)
        parts = [self._part_of(length) for length in (new["len"].cast(pl.Int64) * members).to_list()]
        self._groups = pl.concat([self._groups, new.select(GROUP).with_columns(part=pl.Series(parts, dtype=pl.Int64))])

    def _part_of(self, num_rows: int) -> int:
        if num_rows > self._held_rows:
            self.large.add(self._new())
            return self._next - 1
        if num_rows > self._room:
            self._open, self._room = self._new(), self._held_rows
        self._room -= num_rows
        return self._open

    def _new(self) -> int:
        self._next += 1
        return self._next - 1


def _added_up(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(frames).group_by(COUNTED).agg(pl.col("rows").sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """The number that identifies the collectives of a group."""

    name: str
    """One of `NUMBERS`."""
    repeats: int
    """The largest number of rows of a rank with the same number."""
    placed: Placed

    def with_places(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Adds the column `place` to the rows, which are all rows of some ranks."""
        return rows.with_columns(place=_place(self.name, self.repeats))


def _place(name: str, repeats: int) -> pl.Expr:
    return pl.col(name) * repeats + pl.int_range(pl.len()).over("rank", name)


class NumberEvidence:
    """Evidence about the numbers of a group: which rows have which numbers, and what these rows are."""

    def __init__(self) -> None:
        self._counts: dict[str, list[pl.DataFrame]] = defaultdict(list)
        """Name in `NUMBERS` -> frames of row counts by `COUNTED`, to be summed."""
        self._unknown = set[str]()
        """Numbers that some row lacks."""
        self._known = set[str]()
        """Numbers that some row has."""
        self._lasts: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._num_ranks = 0

    def add(self, rows: pl.DataFrame) -> None:
        """Adds all rows of some ranks."""
        self._num_ranks += rows["rank"].n_unique()
        told = rows.select("rank", "op", "size_bytes", *NUMBERS, pl.when(pl.col("op") != "scatter").then("dtype"),
                           pl.when(pl.col("op").is_in(EQUAL_INPUTS)).then("size_bytes").alias(SIZED))
        for name in NUMBERS:
            if told[name].null_count() < len(told):
                self._known.add(name)
            if told[name].null_count():
                self._unknown.add(name)
            if name not in self._unknown:
                self._add(name, told.with_columns(pl.col(name).alias("number"), pl.int_range(pl.len()).over(
                    "rank", name).alias("again")))

    def _add(self, name: str, rows: pl.DataFrame) -> None:
        frames = self._counts[name]
        frames.append(rows.group_by(COUNTED).len("rows"))
        if sum(map(len, frames[1:])) > max(ROOM, len(frames[0])):
            self._counts[name] = [_added_up(frames)]
        number, again = pl.col("number"), pl.col("again")
        self._lasts[name].append(rows.group_by("rank").agg(
            number.max().alias("last"), again.filter(number == number.max()).max().alias("last_again")))

    def numbering(self) -> Numbering | None:
        """Returns the number that identifies collectives; None if only a comparison of all rows can tell."""
        found = {name: self._judged(name) for name in NUMBERS if name not in self._unknown and name in self._counts}
        for name, each in found.items():
            if each.select(((pl.col("rows") == self._num_ranks) & (pl.col("labels") == 1)).all()).item():
                return self._numbering(name)
        clean = dict[str, int]()
        for name, each in found.items():
            if each.select((pl.col("contents") == 1).all()).item():
                clean[name] = int(each.filter(pl.col("rows") > 1)["rows"].sum())
            elif not each.select((pl.col("kinds") > 1).any()).item():
                return None  # whether contradicting sizes matter depends on how many there are
        best = max(clean, key=lambda name: clean[name], default=None)  # the first of equal ones
        if best is None or not (clean[best] or "sequence" not in self._known):
            return None
        return self._numbering(best)

    def _judged(self, name: str) -> pl.DataFrame:
        """Returns a row per `KEY`: its number of rows and of different labels, by strict and less strict criteria."""
        return _added_up(self._counts[name]).group_by(KEY).agg(
            pl.col("rows").sum(), pl.struct(*KIND, SIZED).n_unique().alias("labels"),
            pl.struct(*KIND, "size_bytes").n_unique().alias("contents"), pl.struct(*KIND).n_unique().alias("kinds"))

    def _numbering(self, name: str) -> Numbering:
        repeats = int(_added_up(self._counts[name]).select(pl.col("again").max()).item()) + 1
        last = {rank: number * repeats + again for rank, number, again in pl.concat(
            self._lasts[name]).select("rank", "last", "last_again").iter_rows()}
        return Numbering(name=name, repeats=repeats, placed=Placed(method="sequence", last=last))

    def rows_by_place(self, numbering: Numbering) -> pl.DataFrame:
        """Returns the number of rows per `place`, ascending."""
        place = pl.col("number") * numbering.repeats + pl.col("again")
        rows = _added_up(self._counts[numbering.name]).group_by(place.alias("place")).agg(pl.col("rows").sum())
        return rows.sort("place")
