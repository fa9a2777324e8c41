"""Computes a model's parameters from those of ranks: replicas once, shards together, experts as a token sees them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.mesh import DATA_PARALLEL, MODEL_PARALLEL
from distprof.contract.tables import PARAMETERS
from distprof.merge.run.representatives import Place, place_of
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import NAMES, Loaded, empty, pieces
from distprof.merge.totals.first_seen import FirstSeen

KEY = ("stage", "module_path", "name")
REPLICATING = (*DATA_PARALLEL, "cp")
"""Axes along which ranks hold the same parameters."""
assert {*REPLICATING, "pp", "ep", "tp"} == {*DATA_PARALLEL, *MODEL_PARALLEL}
SUMS = ("params", "stored_params")
TOLD = ("shape", "params", "whole_params", "trainable", "checksum", "active_ratio")
"""Columns kept of a parameter of the first replica."""
_NEEDED = PARAMETERS.only("rank", *KEY, *SUMS, *TOLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameters:
    """What ranks hold, as far as totals of a model need it; names are categories."""

    sums: pl.DataFrame
    """A row for each `KEY`, with `SUMS` over all ranks, and the first `rank` that has it, with its `shape`."""
    first_replica: pl.DataFrame
    """Rows of the first of those ranks that hold the same; equal rows of several ranks occur once."""
    num_ranks: int
    """Number of ranks that have parameters, or are represented by one that has."""


def read_parameters(run: Run, holders: Run | None = None) -> tuple[HeldParameters, Loaded]:
    """Returns what is held; and which ranks have parameters, without rows.

    Args:
        run: Gives the ranks and their coordinates.
        holders: The ranks whose tables are read; digests show that the others hold the same. None: all ranks.
    """
    holders = holders or run
    adding, ranks, problems = Holding(run, holders), list[int](), list[Any]()
    for piece in pieces(holders, _NEEDED, types=NAMES):
        adding.add(piece.rows)
        ranks += piece.ranks
        problems += piece.problems
    return adding.held(), Loaded(rows=empty(_NEEDED), ranks=ranks, problems=problems)


class Holding:
    """Adds ranks, some at once; the parameters of one model are kept."""

    def __init__(self, run: Run, holders: Run | None = None) -> None:
        """Starts empty; see `read_parameters`."""
        holders = holders or run
        self._places, self._replicas = _places(holders), Replicas(run, holders)
        self._known, self._sums = FirstSeen(KEY), np.zeros((0, len(SUMS)), np.int64)
        self._first: list[pl.DataFrame] = []
        self._num_ranks = 0
        self.add(empty(_NEEDED, NAMES))

    def add(self, rows: pl.DataFrame) -> None:
        """Adds rows of `PARAMETERS` of some ranks, rank by rank."""
        self._num_ranks += rows["rank"].n_unique()
        placed = rows.join(self._places, on="rank", maintain_order="left")
        self._first.append(placed.filter("is_first_replica").select(*KEY, *TOLD).unique(maintain_order=True))
        numbers = self._known.numbers(placed.select(*KEY, "rank", "shape"))
        self._sums = self._known.grown(self._sums)
        added = self._replicas.summed(placed)
        if added is not None:  # otherwise too few ranks are counted
            np.add.at(self._sums, numbers, added.select(SUMS).to_numpy())

    def held(self) -> HeldParameters:
        """Returns the result for all that was added."""
        return HeldParameters(
            sums=self._known.rows.with_columns(pl.Series(name, self._sums[:, at]) for at, name in enumerate(SUMS)),
            first_replica=pl.concat(self._first).unique(maintain_order=True),
            num_ranks=self._num_ranks + self._replicas.num_found)


def _places(holders: Run) -> pl.DataFrame:
    seen = set[Place]()
    return pl.DataFrame([(rank.number, (rank.coordinates or {}).get("pp", 0), _is_first(rank, seen))
                         for rank in holders.ranks],
                        schema={"rank": pl.Int64, "stage": pl.Int64, "is_first_replica": pl.Boolean}, orient="row")


def _is_first(rank: Rank, seen: set[Place]) -> bool:
    """Returns whether a rank is the first of those along replicating axes."""
    place = tuple(one for one in place_of(rank) if one[0] not in REPLICATING)
    is_first = place not in seen
    seen.add(place)
    return is_first


class Replicas:
    """Adds what ranks hold that are represented by one at the same place, whose table is read."""

    def __init__(self, run: Run, holders: Run) -> None:
        """Groups the ranks that are not holders by their place."""
        self._digests, self._peers = run.digests, defaultdict[Place, list[int]](list)
        read = {rank.number for rank in holders.ranks}
        for rank in run.ranks:
            if rank.number not in read:
                self._peers[place_of(rank)].append(rank.number)
        self._places = {rank.number: place_of(rank) for rank in holders.ranks} if self._peers else {}
        self.num_found = 0
        """Number of ranks that are not holders and whose parameters were added."""

    def summed(self, parameters: pl.DataFrame) -> pl.DataFrame | None:
        """Returns rows of `PARAMETERS` with `params` and `stored_params` summed over the ranks that they represent.

        Args:
            parameters: Rows of some holders.

        Returns:
            None if a rank holds other parameters than its representative, or if it is unknown what it stores.
        """
        if not self._peers:
            return parameters
        each = parameters.partition_by("rank", as_dict=True, maintain_order=True).items()
        found = [self._of_place(int(number), rows) for (number,), rows in each]
        whole = [rows for rows in found if rows is not None]
        return pl.concat([parameters.clear(), *whole]) if len(whole) == len(found) else None

    def _of_place(self, number: int, rows: pl.DataFrame) -> pl.DataFrame | None:
        peers, own = self._peers.pop(self._places[number], []), self._digests.get(number)
        known = [self._digests[rank] for rank in peers if rank in self._digests]
        if peers and (own is None or len(known) < len(peers) or any(
                one.names_hash != own.names_hash for one in known)):
            return None
        if any(not one.stored and one.stored_params != one.params for one in known):
            return None
        params, stored = rows["params"].to_numpy(), rows["stored_params"].to_numpy()
        for one in known:
            held = np.frombuffer(one.stored, "<i8") if one.stored else params
            if len(held) != len(stored):
                return None
            stored = stored + held
        self.num_found += len(known)
        return rows.with_columns(pl.Series("params", params * (1 + len(known))), pl.Series("stored_params", stored))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams:
    """Number of parameters of the whole model."""

    unique: int
    """Each parameter once, however many ranks hold it."""
    stored: int
    """What one replica of the model stores on all its ranks, including tensor-parallel replicas and padding."""
    active: int | None
    """Those of `unique` that work on a token, if experts are equally loaded; None for a model without experts that say
    how many of them a token goes to."""


def model_params(run: Run, held: HeldParameters) -> ModelParams | None:
    """Sums parameters of all ranks.

    Args:
        run: Gives the sizes.
        held: What its ranks hold.

    Returns:
        None if a rank has none.
    """
    if held.num_ranks < run.world_size:
        return None
    texts = pl.col("module_path", "name", "shape").cast(pl.String)
    sizes = _without_ties(held.first_replica.with_columns(texts)).group_by(KEY).agg(
        pl.coalesce(pl.col("whole_params").max(), _different(), pl.col("params").max()).alias("unique"),
        pl.col("active_ratio").max())
    active = (sizes["unique"] * sizes["active_ratio"].fill_null(1.0)).sum()
    has_experts = sizes["active_ratio"].count() > 0
    return ModelParams(unique=int(sizes["unique"].sum()), stored=_stored(held.sums, run.dp_size),
                       active=round(active) if has_experts else None)


def _different() -> pl.Expr:
    """Sums the distinct parts of a plain tensor: ranks with equal values hold the same part. Null without values."""
    parts = pl.struct("checksum", "params").filter(pl.col("checksum").is_not_null()).unique()
    return pl.when(parts.len() > 0).then(parts.struct.field("params").sum())


def _without_ties(rows: pl.DataFrame) -> pl.DataFrame:
    """Keeps a matrix that two pipeline stages share, like tied embeddings, only on the first of them."""
    trained = pl.col("trainable") & pl.col("checksum").is_not_null() & pl.col("shape").str.contains(",")
    first = pl.col("stage") == pl.col("stage").min().over("checksum", "shape")
    return rows.filter(~trained | first)


def _stored(sums: pl.DataFrame, dp_size: int) -> int:
    """Returns the sum over ranks, divided by the number of ranks that hold the same part."""
    there = sums.filter(pl.col("stored_params") > 0)
    shards = (there["params"] / there["stored_params"]).round().clip(1, dp_size)
    return round(float((there["stored_params"] * shards / dp_size).sum()))
