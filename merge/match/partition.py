"""Chooses the part in which each row is matched: all rows of a collective, or of two ranks' messages, are in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.merge.run.group_ranks import SIZE

GROUP = ("group", "group_ranks")
"""Columns that tell process groups apart."""
_FAR = 1_000_003


class Partition:
    """Puts process groups into parts of about the same number of rows; a group that is larger has one for itself.

    How many rows a group has is known when all ranks are read. It is taken to be what the first rank has of it, times
    its members.
    """

    def __init__(self, num_rows: int, held_rows: int, world_size: int) -> None:
        """Knows no group yet.

        Args:
            num_rows: Of all ranks, about.
            held_rows: That a part is meant to have.
            world_size: Ranks of the job.
        """
        self._held_rows, self._world_size = held_rows, world_size
        self._num_of_pairs = max(1, -(-num_rows // held_rows))
        """The first so many parts have sends and receives."""
        self._groups = pl.DataFrame(schema={"group": pl.Categorical, "group_ranks": pl.Categorical, "part": pl.Int64})
        self._next = self._num_of_pairs
        self._open, self._room = 0, 0
        """The part that groups go to, and for how many more rows."""
        self.large = set[int]()
        """Parts that have one large group."""

    def parts_of(self, rows: pl.DataFrame) -> Integers:
        """int64 a row: its part.

        Args:
            rows: All of some ranks; of these at least `GROUP`, op, rank and peer.
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
        """Gives new groups their parts."""
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
