"""What the ranks of a run did, read so far that a graph can be made of it: steps, timelines, collectives by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from distprof.contract.passes import ARRIVALS
from distprof.contract.problems import FirstStepLeftOut, Remark, Unreadable
from distprof.merge.activity.activities import Activities
from distprof.merge.activity.device.mean_steps import SETTLES, settled_steps
from distprof.merge.activity.device.rank_device import NO_DEVICES, DeviceSteps
from distprof.merge.activity.intervals import Intervals
from distprof.merge.activity.rank_activity import RankActivity, RankCollectives, collectives_by_rank
from distprof.merge.activity.rank_slices import UNKNOWN, Timelines, step_windows
from distprof.merge.activity.run_activity import has_timeline, run_activity
from distprof.merge.clock.model import Clock
from distprof.merge.program.job import Job, job_of
from distprof.merge.program.waits import COLUMNS
from distprof.merge.run.run_model import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgram:
    """Times are on the common clock."""

    rows: pl.DataFrame
    """`MERGED_COLLECTIVES`."""
    windows: pl.DataFrame
    """Steps of the ranks; see `step_windows`."""
    traced: list[int]
    """Steps that count and have a timeline."""
    arrivals: list[int]
    """Steps that count and have none."""
    timelines: Mapping[int, pl.DataFrame]
    """Slices of the ranks that have a timeline; they may be read when they are asked for."""
    calls: Mapping[int, RankCollectives]
    did: Mapping[int, RankActivity]
    activities: Activities
    devices: DeviceSteps
    """What devices did in steps with a timeline; also of ranks without collectives."""
    remarks: Sequence[Remark]
    problems: Sequence[Unreadable]
    """Timelines that are damaged."""

    def job(self) -> Job:
        """The graph of what can be replayed."""
        if self.arrivals and self.replayable == self.traced:
            untraced = self.windows.filter(pl.col("pass") == ARRIVALS)["step"].unique()
            kept = ~pl.col("step").is_in(untraced.implode()).fill_null(value=False)
            return job_of(self.rows.filter(kept), self.did, self.windows.filter(kept), self.activities)
        return self.whole_job()

    def whole_job(self) -> Job:
        """The graph of all of it: who is late shows there, though not what that costs."""
        return job_of(self.rows, self.did, self.windows, self.activities)

    @property
    def replayable(self) -> list[int]:
        """Steps that count whose replay is exact: on devices those with a timeline, which alone shows how work and
        communication overlap there."""
        on_device = bool(self.did) and all(one.on_device for one in self.did.values())
        return self.traced if on_device and len(self.traced) >= SETTLES else [*self.traced, *self.arrivals]

    def of_even_steps(self) -> RunProgram:
        """The same without what only some ranks recorded: a rank is slower in steps with a timeline than one without.

        What is left are steps of the arrivals pass; there may be none.
        """
        even = pl.col("step").is_in(self.arrivals)
        return replace(self, rows=self.rows.filter(even), windows=self.windows.filter(even), traced=[], timelines={},
                       calls={}, did={}, activities=Activities(), devices=NO_DEVICES, remarks=[])


def run_program(run: Run, clock: Clock, rows: pl.DataFrame, steps: pl.DataFrame | None) -> RunProgram:
    """Reads timelines and finds the steps that count.

    Args:
        run: What was recorded.
        clock: Of the run.
        rows: `MERGED_COLLECTIVES` of it.
        steps: Its `STEPS`; None for traces of other programs.
    """
    # of a million rows without timelines, nothing but the graph is made
    has_any = any(map(has_timeline, run.ranks))
    calls, recorded = (collectives_by_rank(rows), _recorded_waits(rows)) if has_any else ({}, {})
    windows = None if steps is None else step_windows(clock, steps, ())
    read = run_activity(run, clock, lambda rank: (calls.get(rank), recorded.get(rank)), windows)
    windows = step_windows(clock, None, read.steps) if windows is None else windows
    if windows.is_empty():
        windows = _windows_of(rows)
    traced, arrivals = (sorted(set(windows.filter((pl.col("pass") == ARRIVALS) == is_one)["step"].to_list()))
                        for is_one in (False, True))
    arrivals = _seen(arrivals, rows)
    remarks = [FirstStepLeftOut(step=traced[0])] if len(traced) >= SETTLES else []
    return RunProgram(rows=rows, windows=windows, traced=settled_steps(traced), arrivals=settled_steps(arrivals),
                      timelines=Timelines(read.ranks, clock), calls=calls if read.ranks else {}, did=read.did,
                      activities=read.activities, devices=read.devices, remarks=remarks, problems=read.problems)


def _seen(steps: list[int], rows: pl.DataFrame) -> list[int]:
    """Without steps of whose collectives no end is known: who is late does not show there."""
    ends = rows.group_by("step").agg(known=pl.col("end_ns").is_not_null().any())
    unseen = set(ends.filter(~pl.col("known"))["step"].to_list())
    return [step for step in steps if step not in unseen]


def _windows_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Steps as far as collectives show them: from the first call of a step to its last end; all, without steps."""
    step = pl.col("step").fill_null(0)
    found = rows.group_by("rank", step).agg(start_ns=pl.min_horizontal("enqueue_ns", "arrival_ns").min(),
                                            end_ns=pl.col("end_ns").max()).drop_nulls().sort("rank", "step")
    # a step lasts until the next one begins
    following = pl.col("start_ns").shift(-1).over("rank")
    return found.with_columns(
        end_ns=pl.coalesce(following, "end_ns"), **dict.fromkeys(UNKNOWN, pl.lit(None, pl.Int64)),
        **{"pass": pl.lit("trace")}).with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))


def _recorded_waits(rows: pl.DataFrame) -> dict[int, Intervals]:
    """When ranks waited, of those whose recorder saw it."""
    if not set(COLUMNS) <= set(rows.columns):
        return {}
    waits = rows.select("rank", *COLUMNS).drop_nulls()
    return {int(key[0]): Intervals.of(*(part[name].to_numpy() for name in COLUMNS))
            for key, part in waits.partition_by("rank", as_dict=True).items()}
