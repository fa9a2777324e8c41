"""Causes: what a rank spends more time on than its peers, from timelines, from timers alone, and from script lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from distprof.contract.passes import TIME
from distprof.contract.tables import LINES
from distprof.merge.activity.activities import OF_MODULES, Activities, Activity
from distprof.merge.activity.rank_activity import RankActivity
from distprof.merge.blame.culprits import Cause, Culprit, Line
from distprof.merge.blame.excess import WHOLE, Excess
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import read_table
from distprof.merge.waits.script_lines import PLACE, spent_in_lines

MOST_OF = 0.7
"""A module is named as the place of an excess if it, with its submodules, holds at least this share of the excess."""
OF_IT = 0.5
"""A module or a part of the step is a cause if its excess is at least this fraction of what fixing the rank gains."""
ALMOST = 0.7
"""A nested module is named instead of its parent if its excess is at least this fraction of the largest excess."""
PARTS = {"data": "before_forward_ns", "optimizer": "optimizer_ns"}
"""Kind of a cause -> column of `STEPS` with the time of this part of the step."""
PHASES = {"forward": "fwd_time_ns", "backward": "bwd_time_ns", "recompute": "recompute_time_ns"}
"""Kind of a cause -> column of `MODULES` with the time of a module in this phase."""
TIMED = ("rank", "module_path", "depth", *PHASES.values())
"""Columns of `MODULES` that `timed_cause` needs."""
MOST_OF_IT = 0.5
"""A line is named only if it accounts for at least this fraction of the excess of its cause."""
PHASE_OF_LINES = {"forward": "forward", "backward": "backward", "recompute": "backward", "optimizer": "optimizer",
                  "host": "between", "data": "between"}
"""Kind of a cause -> `phase` of the samples that can show its line."""
FEWEST = 3
"""Samples of a line in steps with a timeline that are needed to tell in which activity the line runs."""
COUNTS = ("batch", "elements", "core")
"""Kinds of causes whose amounts are not times."""


def cause_of(excess: Excess, row: int, kind: str, known: Sequence[Activity], gain_ns: float) -> Cause | None:
    """Describes a kind of work as a cause, with the place in which most of the excess lies.

    Args:
        excess: Work of the rank and its peers.
        row: Row of the rank in `excess`.
        kind: Kind of work, or `WHOLE`.
        known: Activities by number.
        gain_ns: How much shorter the job's step would be without this excess.

    Returns:
        None if the rank spends no more time there than its median peer.
    """
    where = None if kind == WHOLE else _place(excess, row, kind, known)
    held = np.array([_lies_in(known[label], kind, where) for label in excess.labels.tolist()], bool)
    spent = excess.mean[:, held].sum(axis=1)
    median = float(np.median(np.delete(spent, row)))
    if spent[row] <= median:
        return None
    return Cause(kind=kind, where=where, gain_ns=gain_ns, spent=float(spent[row]), of_peers=median)


def _place(excess: Excess, row: int, kind: str, known: Sequence[Activity]) -> str | None:
    parts: dict[str | None, float] = defaultdict(float)
    beyond = excess.mean[row] - excess.usual[row]
    for label, ns in zip(excess.labels.tolist(), beyond.tolist(), strict=True):
        if known[label].kind == kind:
            parts[known[label].where] += ns
    longer = {where: ns for where, ns in parts.items() if ns > 0}
    if kind in OF_MODULES:
        return _deepest(longer)
    return max(longer, key=lambda where: longer[where], default=None)


def _deepest(parts: Mapping[str | None, float]) -> str | None:
    """Returns the deepest module that holds at least `MOST_OF` of the excess."""
    inside: dict[str, float] = defaultdict(float)
    for where, ns in parts.items():
        names = where.split(".") if where else []
        for depth in range(len(names) + 1) if where is not None else ():
            inside[".".join(names[:depth])] += ns
    # if two modules hold more than half each, one contains the other
    return max((path for path, ns in inside.items() if ns >= MOST_OF * sum(parts.values())), key=len, default=None)


def _lies_in(activity: Activity, kind: str, where: str | None) -> bool:
    if kind == WHOLE:
        return True
    if activity.kind != kind or where is None:
        return activity.kind == kind
    if kind in OF_MODULES:
        path = activity.where
        return path is not None and (not where or path == where or path.startswith(f"{where}."))
    return activity.where == where


def timed_cause(steps: pl.DataFrame, modules: pl.DataFrame, rank: int, gain_ns: float) -> Cause | None:
    """Returns the part of a step, or the innermost module, that explains most of a rank's delay; None if none does.

    A rank that waits for others inside a module takes longer there too, but so do its peers, even more.

    Args:
        steps: `STEPS` of the rank and its peers.
        modules: Columns `TIMED` of their `MODULES`.
        rank: The rank that delays others.
        gain_ns: How much shorter a step would be without the delay.
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


def with_lines(run: Run, clock: Clock, culprits: Sequence[Culprit], steps: pl.DataFrame, collectives: pl.DataFrame,
               did: Mapping[int, RankActivity], activities: Activities) -> list[Culprit]:
    """Adds the script line to the largest cause of each certain culprit, where samples show one.

    Args:
        run: The recorded run.
        clock: Its clock.
        culprits: Ranks that delay the job.
        steps: Start and end of the counted steps of each rank, on the common clock.
        collectives: Recorded waits for collectives, on the common clock.
        did: Rank -> what it did in steps with a timeline.
        activities: Names of these activities.
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
    phase, ranks = PHASE_OF_LINES.get(cause.kind), set(spent["rank"].to_list())
    if phase is not None:
        spent = spent.filter(pl.col("phase").fill_null(phase) == phase)
    each = spent.group_by("rank", *PLACE).agg(pl.col("ns").sum())
    others = sorted(ranks - {rank})
    for row in _excess(each, rank, others).iter_rows(named=True):
        if row["ns"] - row["usual"] < MOST_OF_IT * (cause.spent - cause.of_peers):
            return cause
        at = spent.filter(pl.col("rank") == rank, *(pl.col(name) == row[name] for name in PLACE))["at_ns"].to_numpy()
        if did is None or _is_in(cause, at, did, activities):
            return replace(cause, line=Line(file=row["file"], line=row["line"], function=row["function"],
                                            spent_ns=row["ns"], of_peers_ns=row["usual"]))
    return cause


def _excess(each: pl.DataFrame, rank: int, others: Sequence[int]) -> pl.DataFrame:
    """Returns the lines of a rank with `usual`, what the median other rank spends there; largest excess first."""
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
    """Returns whether the line runs in the activity that is the cause; True if timelines do not show it."""
    known, labels = did.lane.at(at)
    kinds = [activities.known[label].kind for label in labels[known].tolist()]
    return len(kinds) < FEWEST or cause.kind in ("whole", "unknown") or kinds.count(cause.kind) >= len(kinds) / 2
