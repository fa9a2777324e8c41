"""The modules tables of all ranks reduced to one row per (pipeline stage, module path)."""

from __future__ import annotations

import polars as pl

from distprof.contract.tables import TIME_COLUMNS
from distprof.merge.run.run_model import Run

REDUCED = ("params", "stored_params", "fwd_macs", "fwd_flops", "bwd_flops", "recompute_flops",
           *(column.name for column in TIME_COLUMNS))
TIMES = ("fwd_time_ns", "bwd_time_ns", "recompute_time_ns")


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
