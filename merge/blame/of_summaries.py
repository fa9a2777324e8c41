"""Analysis of waiting in a run of many ranks, by their summaries: what steps were spent on, and who delays them."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from distprof.contract.group_ranks import text_of
from distprof.contract.problems import FirstStepLeftOut, Remark
from distprof.contract.rank_summary import COMMUNICATION
from distprof.merge.activity.breakdown import SCHEMA
from distprof.merge.blame.analysis import Analysis
from distprof.merge.blame.culprits import Basis, by_host
from distprof.merge.blame.slow_groups import SlowGroup, slow_groups_of
from distprof.merge.blame.summarised.second_look import looked_again
from distprof.merge.blame.summarised.suspects import culprits_of
from distprof.merge.levels.level_run import LevelRun
from distprof.merge.levels.meeting_rows import meeting_rows


def analysis_of_summaries(level: LevelRun) -> Analysis:
    """What waiting cost, and who caused it."""
    remarks: list[Remark] = []
    if level.first_left_out is not None:
        remarks.append(FirstStepLeftOut(step=level.first_left_out))
    found = looked_again(level, culprits_of(level))
    basis = None if found.blind is not None else Basis(summaries=found.num_ranks, tables=list(found.tables))
    hosts = {rank.number: rank.host for rank in level.run.ranks}
    return Analysis(breakdown=breakdown_of(level), culprits=by_host(found.culprits, hosts), blind=found.blind,
                    crowded=found.crowded, basis=basis, steps=list(level.shown), remarks=remarks, problems=(),
                    slow_groups=_slow_groups(level, hosts))


def _slow_groups(level: LevelRun, hosts: Mapping[int, str]) -> list[SlowGroup]:
    steps = level.steps.filter(pl.col("step").is_in(list(level.shown)))
    if steps.is_empty():
        return []
    kinds = pl.DataFrame({name: level.kept.kinds[name] for name in ("meeting", "waited_ns", "in_ns")}).group_by(
        "meeting").agg(pl.col("waited_ns", "in_ns").cast(pl.Float64).sum())
    exposed: dict[str, float] = {}
    for meeting, waited_ns, in_ns in kinds.iter_rows():
        ranks = text_of(level.kept.meetings[meeting].group.ranks)
        exposed[ranks] = max(exposed.get(ranks, 0.0), min(waited_ns / in_ns, 1.0) if in_ns > 0 else 0.0)
    return slow_groups_of(meeting_rows(level), hosts, float(steps["duration_ns"].mean()), exposed)  # type: ignore[arg-type]


def breakdown_of(level: LevelRun) -> pl.DataFrame:
    """The columns of `step_breakdown`, of the steps that are shown; null what summaries do not tell.

    How long a rank waited for communication is known of each step; which part of it before all had come, of the calls
    whose times were kept.
    """
    joined = level.kept
    is_wait = [number for number, one in enumerate(joined.activities) if one.kind == COMMUNICATION]
    held = pl.Series(joined.spent["activity"]).is_in(is_wait)
    blocked = pl.DataFrame({"rank": joined.ranks[joined.spent["rank"]], "step": joined.spent["step"],
                            "blocked_ns": joined.spent["ns"]}).filter(held).cast({"step": pl.Int64})
    windows = level.steps.filter(pl.col("step").is_in(list(level.shown))).select("rank", "step", "duration_ns")
    each = windows.join(blocked, on=("rank", "step"), how="left").join(
        level.measured.shares, on=("rank", "step"), how="left")
    met = each.with_columns(pl.col("blocked_ns").clip(0, pl.col("duration_ns")))
    waiting, messages = ((pl.col("blocked_ns") * pl.col(name)).cast(pl.Int64)
                         for name in ("waiting_ratio", "message_ratio"))
    found = met.with_columns(waiting.alias("waiting_ns"), messages.alias("message_waiting_ns")).with_columns(
        (pl.col("blocked_ns") - pl.col("waiting_ns")).alias("moving_ns"))
    missing = [pl.lit(None, kind).alias(name) for name, kind in SCHEMA.items() if name not in found.columns]
    return found.with_columns(missing).select(list(SCHEMA)).sort("rank", "step")
