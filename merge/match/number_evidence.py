"""Finds by which number the rows of a large group belong together, without holding them: it is added up rank by rank.

The rules are those of `groups.py`, as far as they can be followed by counts of rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from distprof.contract.collective_ops import EQUAL_INPUTS
from distprof.merge.match.groups import NUMBERS
from distprof.merge.match.matching import Placed

SIZED = "sized"
"""Bytes of ops whose inputs have to be equal."""
KIND = ("op", "dtype")
KEY = ("number", "again")
COUNTED = (*KEY, *KIND, "size_bytes", SIZED)
ROOM = 1 << 17
"""Counts that are added up at once."""


def _added_up(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(frames).group_by(COUNTED).agg(pl.col("rows").sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """The number by which rows of a group belong together."""

    name: str
    """One of `NUMBERS`."""
    repeats: int
    """How often a rank has it, at most."""
    placed: Placed

    def with_places(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows, all of some ranks, with the column `place`."""
        return rows.with_columns(place=_place(self.name, self.repeats))


def _place(name: str, repeats: int) -> pl.Expr:
    return pl.col(name) * repeats + pl.int_range(pl.len()).over("rank", name)


class NumberEvidence:
    """What numbers the rows of one group have, and what these rows are."""

    def __init__(self) -> None:
        self._counts: dict[str, list[pl.DataFrame]] = defaultdict(list)
        """By `NUMBERS`: frames of rows by `KEY` and what they are, to be added up."""
        self._unknown = set[str]()
        """Numbers that a row lacks."""
        self._known = set[str]()
        """Numbers that a row has."""
        self._lasts: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._num_ranks = 0

    def add(self, rows: pl.DataFrame) -> None:
        """Takes in all rows of some ranks."""
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
        """The number that brings the rows together; None where only a look at all rows tells."""
        found = {name: self._judged(name) for name in NUMBERS if name not in self._unknown and name in self._counts}
        for name, each in found.items():
            if each.select(((pl.col("rows") == self._num_ranks) & (pl.col("labels") == 1)).all()).item():
                return self._numbering(name)
        clean = dict[str, int]()
        for name, each in found.items():
            if each.select((pl.col("contents") == 1).all()).item():
                clean[name] = int(each.filter(pl.col("rows") > 1)["rows"].sum())
            elif not each.select((pl.col("kinds") > 1).any()).item():
                return None  # whether sizes contradict each other, depends on how many do
        best = max(clean, key=lambda name: clean[name], default=None)  # the first of equal ones
        if best is None or not (clean[best] or "sequence" not in self._known):
            return None
        return self._numbering(best)

    def _judged(self, name: str) -> pl.DataFrame:
        """A row per `KEY`: rows, and how many different things they are, more and less strictly."""
        return _added_up(self._counts[name]).group_by(KEY).agg(
            pl.col("rows").sum(), pl.struct(*KIND, SIZED).n_unique().alias("labels"),
            pl.struct(*KIND, "size_bytes").n_unique().alias("contents"), pl.struct(*KIND).n_unique().alias("kinds"))

    def _numbering(self, name: str) -> Numbering:
        repeats = int(_added_up(self._counts[name]).select(pl.col("again").max()).item()) + 1
        last = {rank: number * repeats + again for rank, number, again in pl.concat(
            self._lasts[name]).select("rank", "last", "last_again").iter_rows()}
        return Numbering(name=name, repeats=repeats, placed=Placed(method="sequence", last=last))

    def rows_by_place(self, numbering: Numbering) -> pl.DataFrame:
        """How many rows there are by `place`, ascending."""
        place = pl.col("number") * numbering.repeats + pl.col("again")
        rows = _added_up(self._counts[numbering.name]).group_by(place.alias("place")).agg(pl.col("rows").sum())
        return rows.sort("place")
