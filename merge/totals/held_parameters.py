"""Parameters of all ranks, added up while their tables are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.mesh import DATA_PARALLEL, MODEL_PARALLEL
from distprof.contract.tables import PARAMETERS
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import NAMES, Loaded, empty, pieces
from distprof.merge.totals.first_seen import FirstSeen
from distprof.merge.totals.level_parameters import Replicas

KEY = ("stage", "module_path", "name")
REPLICATING = (*DATA_PARALLEL, "cp")
"""Axes along which ranks hold the same parameters."""
assert {*REPLICATING, "pp", "ep", "tp"} == {*DATA_PARALLEL, *MODEL_PARALLEL}
SUMS = ("params", "stored_params")
TOLD = ("shape", "params", "whole_params", "trainable", "checksum", "active_ratio")
"""What is kept of a parameter of the first replica."""
_NEEDED = PARAMETERS.only("rank", *KEY, *SUMS, *TOLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameters:
    """What ranks hold, as far as totals of a model need it; names are categories."""

    sums: pl.DataFrame
    """A row for each `KEY`, with `SUMS` over all ranks, and the `rank` that was the first to have it, with its
    `shape`."""
    first_replica: pl.DataFrame
    """Rows of the first of those ranks that hold the same, equal ones of neighbours once."""
    num_ranks: int
    """Ranks that have some."""
    is_whole: bool = True
    """False where it is not known what ranks hold that others stand for."""


def read_parameters(run: Run, holders: Run | None = None) -> tuple[HeldParameters, Loaded]:
    """What is held; and which ranks have parameters, without rows.

    Args:
        run: Its ranks and their places.
        holders: Of a run that was opened by the files of its hosts, those whose tables are read.
    """
    adding, ranks, problems = Holding(run), list[int](), list[Any]()
    for piece in pieces(holders or run, _NEEDED, types=NAMES):
        adding.add(piece.rows)
        ranks += piece.ranks
        problems += piece.problems
    return adding.held(), Loaded(rows=empty(_NEEDED), ranks=ranks, problems=problems)


class Holding:
    """Adds ranks up, some at once; kept are the parameters of one model."""

    def __init__(self, run: Run) -> None:
        self._places = _places(run)
        self._replicas = Replicas(run) if run.summaries is not None else None
        self._is_whole = run.summaries is None or not run.missing
        self._known, self._sums = FirstSeen(KEY), np.zeros((0, len(SUMS)), np.int64)
        self._first: list[pl.DataFrame] = []
        self._num_ranks = 0
        self.add(empty(_NEEDED, NAMES))

    def add(self, rows: pl.DataFrame) -> None:
        """Rows of `PARAMETERS`, of some ranks one after the other."""
        self._num_ranks += rows["rank"].n_unique()
        placed = rows.join(self._places, on="rank", maintain_order="left")
        self._first.append(placed.filter("is_first_replica").select(*KEY, *TOLD).unique(maintain_order=True))
        numbers = self._known.numbers(placed.select(*KEY, "rank", "shape"))
        self._sums = self._known.grown(self._sums)
        added = placed if self._replicas is None else self._replicas.summed(placed)
        if added is None:
            self._is_whole = False
        else:
            np.add.at(self._sums, numbers, added.select(SUMS).to_numpy())

    def held(self) -> HeldParameters:
        """Of all that were added."""
        return HeldParameters(
            sums=self._known.rows.with_columns(pl.Series(name, self._sums[:, at]) for at, name in enumerate(SUMS)),
            first_replica=pl.concat(self._first).unique(maintain_order=True), num_ranks=self._num_ranks,
            is_whole=self._is_whole and (self._replicas is None or self._replicas.are_all_there))


def _places(run: Run) -> pl.DataFrame:
    # of summaries, there is one rank of each place on the other axes
    replicating = REPLICATING if run.summaries is None else tuple(set(REPLICATING) - set(DATA_PARALLEL))
    return pl.DataFrame([(rank.number, (rank.coordinates or {}).get("pp", 0), _is_first(rank, replicating))
                         for rank in run.ranks],
                        schema={"rank": pl.Int64, "stage": pl.Int64, "is_first_replica": pl.Boolean}, orient="row")


def _is_first(rank: Rank, replicating: Iterable[str]) -> bool:
    coordinates = rank.coordinates or {}
    return not any(coordinates.get(axis, 0) for axis in replicating)
