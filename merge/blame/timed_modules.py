"""The module in which a rank takes longer than others, by the timers of the time pass, for ranks without timelines."""

from __future__ import annotations

import polars as pl

from distprof.merge.blame.culprits import Cause

OF_IT = 0.5
"""Part of what fixing the rank would gain that a module has to exceed others by."""
ALMOST = 0.7
"""Part of the largest excess from which on a module inside is named in place of the one around it."""
PHASES = {"forward": "fwd_time_ns", "backward": "bwd_time_ns"}
TIMED = ("rank", "module_path", "depth", *PHASES.values())
"""Columns of `MODULES` that tell it."""


def timed_cause(modules: pl.DataFrame, rank: int, gain_ns: float) -> Cause | None:
    """The innermost module that explains most of what a rank delays others by; None where none does.

    A rank that waits for others inside a module takes longer, too: so do those it is compared with, and more so.

    Args:
        modules: `TIMED` of all ranks.
        rank: It delays others.
        gain_ns: By how much a step would be shorter without that.
    """
    found = [cause for phase, column in PHASES.items() if (cause := _of_phase(modules, rank, gain_ns, phase, column))]
    return max(found, key=lambda one: one.spent - one.of_peers, default=None)


def _of_phase(modules: pl.DataFrame, rank: int, gain_ns: float, phase: str, column: str) -> Cause | None:
    times = modules.select("rank", "module_path", "depth", ns=column).drop_nulls()
    others = times.filter(pl.col("rank") != rank).group_by("module_path").agg(usual=pl.col("ns").median())
    mine = times.filter(pl.col("rank") == rank).join(others, on="module_path").with_columns(
        excess=pl.col("ns") - pl.col("usual"))
    most = mine["excess"].max()
    if not isinstance(most, int | float) or most < OF_IT * gain_ns:
        return None
    one = mine.filter(pl.col("excess") >= ALMOST * most).sort("depth", "excess").row(-1, named=True)
    return Cause(kind=phase, where=one["module_path"], gain_ns=gain_ns, spent=one["ns"], of_peers=one["usual"])
