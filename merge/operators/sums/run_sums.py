"""Operators of the ranks of a run, added up as ranks come: with ranks only their times in groups grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from distprof.merge.operators.sums.added_up import REAL, AddedUp, joined, numbers_of, small
from distprof.merge.operators.sums.real_sums import RealSums

AT_ONCE = 16
"""Ranks that are added in one go: polars takes some time each time."""


class RunSums:
    """Takes what was added up of each rank.

    Of a group, a row stays. Of each rank only its time in a group and step does, in some bytes: medians over ranks, and
    how likely a rank is slow by chance, need them all.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        """Rows are kept apart by these columns."""
        self.keys = tuple(keys)
        self._waiting = list[AddedUp]()
        self._groups = list[pl.DataFrame]()
        self._in_steps = list[pl.DataFrame]()
        self._real = RealSums(REAL)

    def add(self, found: AddedUp) -> None:
        """Takes ranks that were not taken yet."""
        self._waiting.append(found)
        if len(self._waiting) >= AT_ONCE:
            self._take()

    @property
    def groups(self) -> pl.DataFrame:
        """`AddedUp.groups` of all ranks."""
        self._take()
        return self._groups[0].with_columns(**{name: pl.Series(values) for name, values in self._real.done().items()})

    @property
    def ranks(self) -> list[int]:
        """Those with any row."""
        return self._all("rank")

    @property
    def steps(self) -> list[int]:
        """In which there is any row."""
        return self._all("step")

    def busy(self, name: str) -> Iterator[pl.DataFrame]:
        """A row for each group, rank and step, with its time: `group`, `rank`, `step`, and `name`, one of `BUSY`.

        Ranks come a few at a time: rows of all take many times what they are held in.
        """
        for part in self._parts():
            yield part.select(pl.col("group").cast(pl.UInt32), pl.col("rank", "step", name).cast(pl.Int64))

    def _parts(self) -> list[pl.DataFrame]:
        self._take()
        return self._in_steps

    def _all(self, name: str) -> list[int]:
        found = [part[name].drop_nulls().unique().cast(pl.Int64) for part in self._parts()]
        return pl.concat(found).unique().sort().to_list()

    def _take(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        come = pl.concat([one.groups for one in waiting])
        self._groups = [joined([*self._groups, come.drop(REAL)], self.keys)]
        self._real.grow(len(self._groups[0]))
        numbers, start, parts = numbers_of(come, self._groups[0], self.keys), 0, list[pl.DataFrame]()
        for one in waiting:
            own, start = numbers[start:start + len(one.groups)], start + len(one.groups)
            self._real.add(own.to_numpy(), {name: one.groups[name].to_numpy() for name in REAL})
            parts.append(one.in_steps.with_columns(group=own.gather(one.in_steps["group"])))
        self._in_steps.append(small(pl.concat(parts, how="vertical_relaxed").rechunk()))
