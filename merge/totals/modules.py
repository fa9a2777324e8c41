"""Sums modules of all ranks while their tables are read, and arranges them as rows of a tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from distprof.contract.tables import MODULES, TIME_COLUMNS
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import NAMES, Loaded, pieces
from distprof.merge.totals.first_seen import FirstSeen
from distprof.merge.totals.operator_sums import FLOPS_OF_PHASE
from distprof.reporters.tree import TreeRow

REDUCED = ("params", "stored_params", "fwd_macs", *FLOPS_OF_PHASE, *(column.name for column in TIME_COLUMNS))
TIMES = ("fwd_time_ns", "bwd_time_ns", "recompute_time_ns")
_TIMES_AT = [REDUCED.index(name) for name in TIMES]
_NEEDED = MODULES.only("rank", "module_path", "class_name", "depth", *REDUCED)
MEANS = {"macs": "fwd_macs_mean", **{name: f"{name}_mean" for name in (
    "params", *FLOPS_OF_PHASE, *TIMES, "fwd_self_time_ns", "bwd_self_time_ns")}}
"""Column of the tree -> column of the table; tables of some versions lack some."""


def read_modules(run: Run) -> Loaded:
    """Returns `MERGED_MODULES` of all ranks; memory grows with the modules of a model, not with its ranks."""
    sums, ranks, problems = ModuleSums(run), list[int](), list[Any]()
    for piece in pieces(run, _NEEDED, types=NAMES):
        sums.add(piece.rows)
        ranks += piece.ranks
        problems += piece.problems
    return Loaded(rows=sums.frame(), ranks=ranks, problems=problems)


class ModuleSums:
    """Mean, min and max over the ranks that have a module, and its share of the model.

    Sums use Kahan's algorithm, rank by rank, so they do not depend on how many ranks are added at once.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stages = {rank.number: (rank.coordinates or {}).get("pp", 0) for rank in run.ranks}
        self._modules = FirstSeen(("stage", "module_path"))
        wide = (0, len(REDUCED))
        self._num_known = np.zeros(wide, np.int64)
        self._sums, self._lost = np.zeros(wide), np.zeros(wide)
        self._least, self._most = np.zeros(wide), np.zeros(wide)
        self._num_ranks, self._slowest, self._longest = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)

    def add(self, rows: pl.DataFrame) -> None:
        """Adds rows of `MODULES` of some ranks, rank by rank, with each module once per rank."""
        stages = pl.col("rank").replace_strict(self._stages, return_dtype=pl.Int64)
        numbers = self._modules.numbers(rows.select("module_path", "class_name", "depth", stage=stages))
        self._grow()
        values = rows.select(pl.col(REDUCED).cast(pl.Float64)).to_numpy(order="c")
        ranks = rows["rank"].to_numpy()
        for start, end in pairwise([*np.flatnonzero(np.diff(ranks, prepend=-1)), len(ranks)]):
            self._add_rank(int(ranks[start]), numbers[start:end], values[start:end])

    def _grow(self) -> None:
        grown = self._modules.grown
        self._num_known, self._num_ranks = grown(self._num_known), grown(self._num_ranks)
        self._sums, self._lost = grown(self._sums), grown(self._lost)
        self._least, self._most = grown(self._least, np.nan), grown(self._most, np.nan)
        self._slowest, self._longest = grown(self._slowest, -1), grown(self._longest)

    def _add_rank(self, rank: int, at: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        known = ~np.isnan(values)
        self._num_ranks[at] += 1
        self._num_known[at] += known
        before, lost = self._sums[at], self._lost[at]
        added = values - lost
        after = before + added
        self._sums[at] = np.where(known, after, before)
        self._lost[at] = np.where(known, (after - before) - added, lost)
        self._least[at], self._most[at] = np.fmin(self._least[at], values), np.fmax(self._most[at], values)
        time_ns = np.where(known, values, 0)[:, _TIMES_AT].sum(axis=1)
        longer = at[time_ns > self._longest[at]]
        self._longest[at] = np.maximum(self._longest[at], time_ns)
        self._slowest[longer] = rank  # of equally slow ranks the first

    def frame(self) -> pl.DataFrame:
        """Returns the columns of `MERGED_MODULES`, modules in the order in which they were first seen."""
        # a stage is one of pp parts of the model: each of its ranks holds one of mp_size / pp shards of the module
        shards = self._run.mp_size // self._run.topology.get("pp", 1)
        names = self._modules.rows.select(
            "stage", pl.col("module_path", "class_name").cast(pl.String), "depth") if len(self._modules) else _NO_NAMES
        slowest = pl.Series("slowest_rank", self._slowest)
        return names.with_columns(
            pl.Series("num_ranks", self._num_ranks), *self._means(), *self._extremes(),
            pl.select(pl.when(slowest >= 0).then(slowest)).to_series(),
            pl.lit(self._run.mp_size, pl.Int64).alias("mp_size"), pl.lit(self._run.dp_size, pl.Int64).alias("dp_size"),
        ).with_columns(
            (pl.col("params_mean") * shards).alias("model_params"),
            (pl.col("fwd_flops_mean") * shards).alias("model_fwd_flops"),
        )

    def _means(self) -> list[pl.Series]:
        with np.errstate(invalid="ignore"):
            means = self._sums / self._num_known
        return [_numbers(f"{name}_mean", means[:, at]) for at, name in enumerate(REDUCED)]

    def _extremes(self) -> list[pl.Series]:
        return [_numbers(f"{name}_{what}", found[:, at]) for at, name in enumerate(REDUCED)
                for what, found in (("min", self._least), ("max", self._most))]


_NO_NAMES = pl.DataFrame(schema={"stage": pl.Int64, "module_path": pl.String, "class_name": pl.String,
                                 "depth": pl.Int64})


def _numbers(name: str, values: NDArray[np.float64]) -> pl.Series:
    """Makes a column that is null if no rank knows the value."""
    return pl.Series(name, values, nan_to_null=True)


def module_rows(modules: pl.DataFrame) -> tuple[TreeRow, ...]:
    """Returns one row per (stage, module path), in the order of the model; several stages become groups."""
    found = [(module, {key: as_whole(module.get(column)) for key, column in MEANS.items()})
             for module in modules.to_dicts()]
    roots: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for module, values in found:
        if not module["module_path"] or module["module_path"].endswith(":"):
            roots[module["stage"]].append(values)
    staged = modules["stage"].n_unique() > 1
    return tuple(_row(module, values, roots[module["stage"]], staged=staged) for module, values in found)


def module_dicts(modules: pl.DataFrame, rows: Iterable[TreeRow],
                 shown: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Returns the rows of the merged table that are shown, in that order."""
    place = {(row.group, row.path): index for index, row in enumerate(rows)}
    return [modules.row(place[key], named=True) for key in shown]


def _row(module: Mapping[str, Any], values: Mapping[str, Any], roots: Iterable[Mapping[str, Any]], *,
         staged: bool) -> TreeRow:
    return TreeRow(
        path=module["module_path"], class_name=module["class_name"],
        group=f"stage {module['stage']}" if staged else "",
        values={**values, "flops_share": _share(values, roots, FLOPS_OF_PHASE),
                "time_share": _share(values, roots, TIMES), "slowest_rank": module["slowest_rank"]})


def _share(values: Mapping[str, Any], roots: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> float | None:
    """Returns the share of the total of all root modules of the stage; None if unknown."""
    known = [values[key] for key in keys if values[key] is not None]
    total = sum(root[key] or 0 for root in roots for key in keys)
    return sum(known) / total if known and total else None


def as_whole(value: object) -> Any:
    """Returns an int if a float is a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
