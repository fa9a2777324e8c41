"""What torch.compile did in a job: as waits of the steps that are looked at, and added up by what it compiled."""

from __future__ import annotations

import polars as pl

from distprof.contract.tables import COMPILATIONS
from distprof.merge.run.tables import TYPES
from distprof.merge.waits.traced_waits import COMPILER, COMPILING, SCHEMA

COMPILED = {column.name: TYPES[column.type] for column in COMPILATIONS.columns
            if column.name not in ("mp_size", "dp_size")}
"""Columns of the table that are shown."""
EVENTS = ("compile", "recompile", "backward", "graph_break")
WHAT = ("event", "file", "line", "function", "module_path")
"""Rows that are alike in these are one in `grouped_compilations`."""
NUMBERS = ("times", "duration_ns", "longest_ns", "backend_ns", "inductor_ns", "fake_ns", "guards_ns", "failed",
           "num_ranks", "slowest_rank", "slowest_ns")
OF_GUARDS = r"^\d+/\d+: "
"""In front of the guard that failed: the compilation that it is of."""


def empty_compilations() -> pl.DataFrame:
    """`COMPILED` without rows."""
    return pl.DataFrame(schema=COMPILED)


def compiling_waits(compilations: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Compilations in these steps as waits of the lines that called what was compiled.

    Args:
        compilations: `COMPILED`.
        steps: `rank` and `step`.

    Returns:
        A frame as the sync pass has it.
    """
    mine = compilations.filter(pl.col("duration_ns").is_not_null()).join(steps, on=("rank", "step"), how="semi")
    given = {"op": pl.lit(COMPILING), "waits_for": pl.lit(COMPILER), "file": pl.col("caller_file"),
             "line": pl.col("caller_line"), "function": pl.col("caller_function"), "thread": pl.lit("steps"),
             "phase": pl.when(pl.col("event") == "backward").then(pl.lit("backward")), "blocking": pl.lit(value=True),
             "calls": pl.lit(1), "blocked_ns": pl.col("duration_ns"), "longest_ns": pl.col("duration_ns")}
    return mine.select(
        given.get(name, pl.col(name) if name in mine.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in SCHEMA.items())


def grouped_compilations(compilations: pl.DataFrame) -> pl.DataFrame:
    """Compilations and graph breaks added up over ranks and steps, those that took longest first.

    Returns:
        `WHAT`, `NUMBERS`, `steps` (those that are known), and `reasons`, the most frequent first, without the number of
        the compilation that torch puts in front.
    """
    duration = pl.col("duration_ns")
    rows = compilations.with_columns(reason=pl.col("reason").str.replace(OF_GUARDS, ""))
    found = rows.group_by(WHAT, maintain_order=True).agg(
        times=pl.len().cast(pl.Int64), duration_ns=duration.sum(), longest_ns=duration.max(),
        **{name: _sum(name) for name in ("backend_ns", "inductor_ns", "fake_ns", "guards_ns")},
        failed=pl.col("error").is_not_null().sum().cast(pl.Int64), num_ranks=pl.col("rank").n_unique().cast(pl.Int64),
        steps=pl.col("step").drop_nulls().unique().sort(),
        reasons=pl.col("reason").drop_nulls().value_counts(sort=True).struct.field("reason"))
    each = rows.group_by([*WHAT, "rank"]).agg(duration.sum()).sort("rank")
    slowest = each.group_by(WHAT).agg(
        slowest_rank=pl.when((pl.len() > 1) & (duration.max() > 0)).then(pl.col("rank").get(duration.arg_max())),
        slowest_ns=pl.when((pl.len() > 1) & (duration.max() > 0)).then(duration.max()))
    return found.join(slowest, on=WHAT, how="left", nulls_equal=True, maintain_order="left").sort(
        "duration_ns", "times", descending=True, maintain_order=True).select(*WHAT, *NUMBERS, "steps", "reasons")


def compilation_totals(compilations: pl.DataFrame) -> dict[str, int]:
    """How often each of `EVENTS` was, and the time of all."""
    counts = dict(compilations["event"].value_counts().iter_rows())
    return {**{event: int(counts.get(event, 0)) for event in EVENTS},
            "failed": int(compilations["error"].is_not_null().sum()),
            "duration_ns": int(compilations["duration_ns"].sum())}


def _sum(name: str) -> pl.Expr:
    """Null where nothing is known."""
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum())
