"""What a rank takes longer in than its peers, by the timers of the time pass, where no timeline shows it."""

from __future__ import annotations

import polars as pl

from distprof.contract.passes import TIME
from distprof.merge.blame.culprits import Cause

OF_IT = 0.5
"""Part of what the rank is late by that a module, or a part of the step, has to exceed others by."""
ALMOST = 0.7
"""Part of the largest excess from which on a module inside is named in place of the one around it."""
PARTS = {"data": "before_forward_ns", "optimizer": "optimizer_ns"}
PHASES = {"forward": "fwd_time_ns", "backward": "bwd_time_ns", "recompute": "recompute_time_ns"}
TIMED = ("rank", "module_path", "depth", *PHASES.values())
"""Columns of `MODULES` that tell it."""


def timed_cause(steps: pl.DataFrame, modules: pl.DataFrame, rank: int, gain_ns: float) -> Cause | None:
    """The part of a step, or the innermost module, that explains most of what a rank delays others by; None where none
    does.

    A rank that waits for others inside a module takes longer, too: so do those it is compared with, and more so.

    Args:
        steps: `STEPS` of the rank and its peers.
        modules: `TIMED` of them.
        rank: It delays others.
        gain_ns: By how much a step would be shorter without that.
    """
    timed = steps.filter(pl.col("pass") == TIME)
    found = [_of_part(timed, rank, gain_ns, kind, column) for kind, column in PARTS.items()]
    found += [_of_phase(modules, rank, gain_ns, phase, column) for phase, column in PHASES.items()]
    return max((one for one in found if one is not None), key=lambda one: one.spent - one.of_peers, default=None)


def _of_part(steps: pl.DataFrame, rank: int, gain_ns: float, kind: str, column: str) -> Cause | None:
    means = dict(steps.drop_nulls(column).group_by("rank").agg(pl.col(column).mean()).iter_rows())
    mine, others = means.pop(rank, None), pl.Series(list(means.values()), dtype=pl.Float64).median()
    if mine is None or not isinstance(others, float) or mine - others < OF_IT * gain_ns:
        return None
    return Cause(kind=kind, where=None, gain_ns=gain_ns, spent=mine, of_peers=others)


def _of_phase(modules: pl.DataFrame, rank: int, gain_ns: float, phase: str, column: str) -> Cause | None:
    times = modules.select("rank", "module_path", "depth", ns=column).drop_nulls()
    others = times.filter(pl.col("rank") != rank).group_by("module_path").agg(usual=pl.col("ns").median())
    mine = times.filter(pl.col("rank") == rank).join(others, on="module_path").with_columns(
        excess=pl.col("ns") - pl.col("usual"))
    most = mine["excess"].max()
    if not isinstance(most, int | float) or most <= 0 or most < OF_IT * gain_ns:
        return None
    one = mine.filter(pl.col("excess") >= ALMOST * most).sort("depth", "excess").row(-1, named=True)
    return Cause(kind=phase, where=one["module_path"], gain_ns=gain_ns, spent=one["ns"], of_peers=one["usual"])
