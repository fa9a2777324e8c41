"""Operators of the ranks of a run, added up as ranks come: with ranks only their times in groups grow."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from distprof.merge.operators.added_up import REAL, AddedUp, joined, numbers_of, small

AT_ONCE = 16
"""Ranks that are added in one go: polars takes some time each time."""


class RunSums:
    """Takes what was added up of each rank.

    Of a group, a row stays. Of each rank only its time in a group and step does, which medians of ranks, chance, and
    sums of real numbers are made of, in some bytes: rows of a thousand ranks would take a gigabyte.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        """Rows are kept apart by these columns."""
        self.keys = tuple(keys)
        self._waiting = list[AddedUp]()
        self._groups = list[pl.DataFrame]()
        self._in_steps = list[pl.DataFrame]()

    def add(self, found: AddedUp) -> None:
        """Takes ranks that were not taken yet."""
        self._waiting.append(found)
        if len(self._waiting) >= AT_ONCE:
            self._take()

    @property
    def groups(self) -> pl.DataFrame:
        """`AddedUp.groups` of all ranks."""
        self._take()
        return self._groups[0]

    @property
    def ranks(self) -> list[int]:
        """Those with any row."""
        return self._all("rank")

    @property
    def steps(self) -> list[int]:
        """In which there is any row."""
        return self._all("step")

    def busy(self, name: str) -> pl.DataFrame:
        """A row for each group, rank and step, with its time: `group`, `rank`, `step`, and `name`, one of `BUSY`."""
        return pl.concat([part.select(
            pl.col("group").cast(pl.UInt32), pl.col("rank", "step", name).cast(pl.Int64)) for part in self._parts()])

    def real_sums(self) -> pl.DataFrame:
        """`REAL` of each group. How they are rounded depends on what is added to what, not on who read it when."""
        parts = self._parts()
        return pl.concat([pl.concat([part.select(
            pl.col("group").cast(pl.UInt32), pl.col(name) if name in part.columns else pl.lit(0.0).alias(name),
        ) for part in parts]).group_by("group", maintain_order=True).agg(pl.col(name).sum()) for name in REAL], how="align")

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
        self._groups = [joined([*self._groups, come], self.keys)]
        numbers, start, parts = numbers_of(come, self._groups[0], self.keys), 0, list[pl.DataFrame]()
        for one in waiting:
            own, start = numbers[start:start + len(one.groups)], start + len(one.groups)
            parts.append(one.in_steps.with_columns(group=own.gather(one.in_steps["group"])))
        together = pl.concat(parts, how="diagonal_relaxed")
        self._in_steps.append(small(together.with_columns(pl.col(name).fill_null(0.0) for name in REAL
                                                          if name in together.columns)))
