"""The line of the script in which a rank spends what it spends more than its peers, from samples of its thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from distprof.contract.tables import LINES
from distprof.merge.activity.activities import Activities
from distprof.merge.activity.rank_activity import RankActivity
from distprof.merge.blame.culprits import Cause, Culprit, Line
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import read_table
from distprof.merge.waits.script_lines import PLACE, spent_in_lines

MOST_OF_IT = 0.5
"""Part of an excess that a line has to show."""
FEWEST = 3
"""Samples of a line in steps with a timeline, from which on these tell in which activity it is."""
COUNTS = ("batch", "elements", "core")
"""Causes that are no time."""


def with_lines(run: Run, clock: Clock, culprits: Sequence[Culprit], steps: pl.DataFrame, collectives: pl.DataFrame,
               did: Mapping[int, RankActivity], activities: Activities) -> list[Culprit]:
    """Names the line of the largest cause of each culprit that is certain, where one is.

    Args:
        run: What was recorded.
        clock: Of it.
        culprits: Ranks that delay the job.
        steps: Start and end of the steps that count, of each rank, on the common clock.
        collectives: With the waits that were recorded, likewise.
        did: What ranks did in steps with a timeline.
        activities: Names of that.
    """
    if not any(one.certain and one.causes for one in culprits):
        return list(culprits)
    samples = read_table(run, LINES).rows
    if samples is None or samples.is_empty():
        return list(culprits)
    spent = spent_in_lines(_on_common_clock(samples, clock), steps, collectives)
    return [one if not one.certain or not one.causes else replace(one, causes=[
        _with_line(one.causes[0], one.rank, spent, did.get(one.rank), activities), *one.causes[1:]])
        for one in culprits]


def _on_common_clock(samples: pl.DataFrame, clock: Clock) -> pl.DataFrame:
    parts = samples.sort("rank", "at_ns").partition_by("rank")
    return pl.concat([part.with_columns(pl.Series("at_ns", clock.line(int(part["rank"][0])).to_common(
        part["at_ns"].to_numpy()))) for part in parts])


def _with_line(cause: Cause, rank: int, spent: pl.DataFrame, did: RankActivity | None,
               activities: Activities) -> Cause:
    if cause.kind in COUNTS:
        return cause
    each = spent.group_by("rank", *PLACE).agg(pl.col("ns").sum())
    others = sorted(set(spent["rank"].to_list()) - {rank})
    for row in _excess(each, rank, others).iter_rows(named=True):
        if row["ns"] - row["usual"] < MOST_OF_IT * (cause.spent - cause.of_peers):
            return cause
        at = spent.filter(pl.col("rank") == rank, *(pl.col(name) == row[name] for name in PLACE))["at_ns"].to_numpy()
        if did is None or _is_in(cause, at, did, activities):
            return replace(cause, line=Line(file=row["file"], line=row["line"], function=row["function"],
                                            spent_ns=row["ns"], of_peers_ns=row["usual"]))
    return cause


def _excess(each: pl.DataFrame, rank: int, others: Sequence[int]) -> pl.DataFrame:
    """Lines of a rank with what the median other rank spends there, those with the largest excess first."""
    mine = each.filter(pl.col("rank") == rank)
    theirs: dict[tuple[object, ...], list[float]] = {place: [] for place in mine.select(PLACE).iter_rows()}
    for *place, ns in each.filter(pl.col("rank") != rank).select(*PLACE, "ns").iter_rows():
        if tuple(place) in theirs:
            theirs[tuple(place)].append(ns)
    usual = [float(np.median([*found, *[0.0] * (len(others) - len(found))])) if others else 0.0
             for found in theirs.values()]
    return mine.with_columns(usual=pl.Series(usual, dtype=pl.Float64)).sort(
        pl.col("ns") - pl.col("usual"), *PLACE, descending=[True, False, False, False])


def _is_in(cause: Cause, at: np.ndarray, did: RankActivity, activities: Activities) -> bool:
    """Whether the line runs in the activity that is the cause, as far as timelines show it."""
    known, labels = did.lane.at(at)
    kinds = [activities.known[label].kind for label in labels[known].tolist()]
    return len(kinds) < FEWEST or cause.kind in ("whole", "unknown") or kinds.count(cause.kind) >= len(kinds) / 2
