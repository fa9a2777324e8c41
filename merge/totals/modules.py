"""Modules of all ranks: reduced to one row per (pipeline stage, module path), and as rows of a tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from distprof.contract.tables import TIME_COLUMNS
from distprof.merge.run.run_model import Run
from distprof.merge.totals.totals import FLOPS_OF_PHASE, as_whole
from distprof.reporters.tree import TreeRow

REDUCED = ("params", "stored_params", "fwd_macs", *FLOPS_OF_PHASE, *(column.name for column in TIME_COLUMNS))
TIMES = ("fwd_time_ns", "bwd_time_ns", "recompute_time_ns")
MEANS = {"macs": "fwd_macs_mean", **{name: f"{name}_mean" for name in (
    "params", *FLOPS_OF_PHASE, *TIMES, "fwd_self_time_ns", "bwd_self_time_ns")}}
"""Column of the tree -> column of the table; tables of some versions lack some."""


def reduce_modules(run: Run, modules: pl.DataFrame) -> pl.DataFrame:
    """Mean, min and max over the ranks that have the module, and its share of the model.

    Args:
        run: Its ranks and their sizes.
        modules: `MODULES` of all ranks.
    """
    stages = {rank.number: (rank.coordinates or {}).get("pp", 0) for rank in run.ranks}
    frame = modules.with_columns(
        pl.col("rank").replace_strict(stages, return_dtype=pl.Int64).alias("stage"),
        pl.sum_horizontal(TIMES).alias("time_ns"),
    )
    means = [pl.col(name).mean().cast(pl.Float64).alias(f"{name}_mean") for name in REDUCED]
    extremes = [getattr(pl.col(name), what)().cast(pl.Float64).alias(f"{name}_{what}")
                for name in REDUCED for what in ("min", "max")]
    slowest = pl.when(pl.col("time_ns").max() > 0).then(pl.col("rank").sort_by("time_ns").last()).alias("slowest_rank")
    # a stage is one of pp parts of the model: its ranks stand for mp_size / pp shards of the module
    shards = run.mp_size // run.topology.get("pp", 1)
    return (
        frame.group_by("stage", "module_path", maintain_order=True)
        .agg(pl.col("class_name").first(), pl.col("depth").first(), pl.len().cast(pl.Int64).alias("num_ranks"),
             *means, *extremes, slowest)
        .with_columns(
            pl.lit(run.mp_size, pl.Int64).alias("mp_size"), pl.lit(run.dp_size, pl.Int64).alias("dp_size"),
            (pl.col("params_mean") * shards).alias("model_params"),
            (pl.col("fwd_flops_mean") * shards).alias("model_fwd_flops"),
        )
    )


def module_rows(modules: pl.DataFrame) -> tuple[TreeRow, ...]:
    """One row per (stage, module path), in the order of the model; stages are groups where there are several."""
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
    """Rows of the merged table, those that are shown, in that order."""
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
    """Part of what all root modules of the stage have; None where that is unknown."""
    known = [values[key] for key in keys if values[key] is not None]
    total = sum(root[key] or 0 for root in roots for key in keys)
    return sum(known) / total if known and total else None
