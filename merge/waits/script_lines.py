"""Lines of the script in which ranks spend their time, from samples of their threads."""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.contract.passes import ARRIVALS, TRACE
from distprof.contract.tables import COLLECTIVES, LINES, STEPS
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import Loaded, read_table

PLACE = ("file", "line", "function")
"""Columns that identify a line."""
SCHEMA = {"file": pl.String(), "line": pl.Int64(), "function": pl.String(), "mean_ns": pl.Float64(),
          "most_ns": pl.Float64(), "most_rank": pl.Int64(), "ratio": pl.Float64()}
"""Columns of `script_lines`."""


def script_lines(run: Run, steps: Loaded | None = None) -> pl.DataFrame:
    """Returns the time per step of each line that samples saw outside of waits: `SCHEMA`, most time first.

    `mean_ns` is the mean over the ranks that have samples, `most_ns` the time of the rank `most_rank`, and `ratio` the
    mean as a fraction of their steps. `steps` has the run's steps if they were already read.
    """
    samples = read_table(run, LINES).rows if run.kind == "distprof" else None
    if samples is None or samples.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    taken = (steps or read_table(run, STEPS)).rows.filter(pl.col("pass").is_in((TRACE, ARRIVALS)))
    calls = read_table(run, COLLECTIVES.only("rank", "wait_start_ns", "wait_end_ns")).rows
    spent = spent_in_lines(samples, taken, calls).group_by("rank", *PLACE).agg(pl.col("ns").sum())
    ranks = samples["rank"].n_unique()
    step_ns = taken.filter(pl.col("rank").is_in(samples["rank"].unique().implode()))["duration_ns"].to_numpy().mean()
    return spent.sort("rank").group_by(*PLACE).agg(
        mean_ns=pl.col("ns").sum() / ranks, most_ns=pl.col("ns").max(),
        most_rank=pl.col("rank").sort_by("ns", descending=True).first()).with_columns(
        ratio=pl.col("mean_ns") / float(step_ns)).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()).sort(
        "mean_ns", *PLACE, descending=[True, False, False, False])


def spent_in_lines(samples: pl.DataFrame, steps: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Returns samples with `ns`, what each accounts for in the mean step: the time since the previous sample. This may
    be in the previous step, because samples are spread evenly over steps.

    A thread that holds Python's lock in C can be sampled only afterwards. Such a sample is late, and accounts for the
    time in its own step only. Samples in waits are left out.

    Args:
        samples: `LINES`.
        steps: `rank`, `step`, `start_ns` and `end_ns`, on the same clock.
        collectives: `rank` and the recorded waits, on the same clock.
    """
    windows = steps.select("rank", "step", "start_ns", "end_ns")
    number = windows.group_by("rank").agg(num_steps=pl.len())
    inside = samples.join(windows, on=("rank", "step")).filter(
        pl.col("at_ns") >= pl.col("start_ns"), pl.col("at_ns") <= pl.col("end_ns")).sort("rank", "at_ns")
    since = pl.col("at_ns") - pl.col("at_ns").shift(1).over("rank")
    each = inside.with_columns(since_ns=since).with_columns(
        period_ns=pl.col("since_ns").median().over("rank")).with_columns(
        ns=pl.min_horizontal("since_ns", pl.max_horizontal(pl.col("at_ns") - pl.col("start_ns"), "period_ns")))
    each = each.join(number, on="rank").with_columns(ns=pl.col("ns").fill_null(0) / pl.col("num_steps"))
    return each.filter(~pl.Series(_in_waits(each, collectives), dtype=pl.Boolean))


def _in_waits(samples: pl.DataFrame, collectives: pl.DataFrame) -> list[bool]:
    known = collectives.drop_nulls(["wait_start_ns", "wait_end_ns"]) if "wait_start_ns" in collectives.columns else None
    if known is None or known.is_empty():
        return [False] * len(samples)
    found = np.zeros(len(samples), bool)
    ranks = samples["rank"].to_numpy()
    for (rank,), waits in known.select("rank", "wait_start_ns", "wait_end_ns").partition_by(
            "rank", as_dict=True).items():
        mine = np.flatnonzero(ranks == rank)
        starts = np.sort(waits["wait_start_ns"].to_numpy())
        ends = np.maximum.accumulate(waits.sort("wait_start_ns")["wait_end_ns"].to_numpy())
        at = samples["at_ns"].to_numpy()[mine]
        place = np.searchsorted(starts, at, "right") - 1
        found[mine] = (place >= 0) & (at <= ends[np.maximum(place, 0)])
    return found.tolist()
