"""What the ranks of a run did, ready to make a graph of it: steps, timelines, collectives by rank."""

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
    """What the ranks of a run did. Times are on the common clock."""

    rows: pl.DataFrame
    """`MERGED_COLLECTIVES`."""
    windows: pl.DataFrame
    """Steps of the ranks; see `step_windows`."""
    traced: list[int]
    """Steps that count and have a timeline."""
    arrivals: list[int]
    """Steps that count and have no timeline."""
    timelines: Mapping[int, pl.DataFrame]
    """Slices of the ranks that have a timeline; may be read on access."""
    calls: Mapping[int, RankCollectives]
    did: Mapping[int, RankActivity]
    activities: Activities
    devices: DeviceSteps
    """What devices did in steps with a timeline, also for ranks without collectives."""
    remarks: Sequence[Remark]
    problems: Sequence[Unreadable]
    """Damaged timelines."""

    def job(self) -> Job:
        """Returns the graph of what can be replayed."""
        if self.arrivals and self.replayable == self.traced:
            untraced = self.windows.filter(pl.col("pass") == ARRIVALS)["step"].unique()
            kept = ~pl.col("step").is_in(untraced.implode()).fill_null(value=False)
            return job_of(self.rows.filter(kept), self.did, self.windows.filter(kept), self.activities)
        return self.whole_job()

    def whole_job(self) -> Job:
        """Returns the graph of everything: it shows who is late, but not what that costs."""
        return job_of(self.rows, self.did, self.windows, self.activities)

    @property
    def replayable(self) -> list[int]:
        """Steps that count and can be replayed exactly. On devices these are steps with a timeline, because only that
        shows how work and communication overlap."""
        on_device = bool(self.did) and all(one.on_device for one in self.did.values())
        return self.traced if on_device and len(self.traced) >= SETTLES else [*self.traced, *self.arrivals]

    def of_even_steps(self) -> RunProgram:
        """Returns the same without what only some ranks recorded: a rank is slower in steps with a timeline than
        without one.

        Only steps of the arrivals pass are left, if there are any.
        """
        even = pl.col("step").is_in(self.arrivals)
        return replace(self, rows=self.rows.filter(even), windows=self.windows.filter(even), traced=[], timelines={},
                       calls={}, did={}, activities=Activities(), devices=NO_DEVICES, remarks=[])


def run_program(run: Run, clock: Clock, rows: pl.DataFrame, steps: pl.DataFrame | None) -> RunProgram:
    """Reads timelines and finds the steps that count.

    Args:
        run: The recorded run.
        clock: Its clock.
        rows: Its `MERGED_COLLECTIVES`.
        steps: Its `STEPS`; None for traces of other programs.
    """
    # without timelines, nothing but the graph is made of a million rows
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
    """Drops steps whose collectives have no known end: they do not show who is late."""
    ends = rows.group_by("step").agg(known=pl.col("end_ns").is_not_null().any())
    unseen = set(ends.filter(~pl.col("known"))["step"].to_list())
    return [step for step in steps if step not in unseen]


def _windows_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Infers steps from collectives: from the first call of a step to its last end; a single one if there are no
    steps."""
    step = pl.col("step").fill_null(0)
    found = rows.group_by("rank", step).agg(start_ns=pl.min_horizontal("enqueue_ns", "arrival_ns").min(),
                                            end_ns=pl.col("end_ns").max()).drop_nulls().sort("rank", "step")
    # a step lasts until the next one begins
    following = pl.col("start_ns").shift(-1).over("rank")
    return found.with_columns(
        end_ns=pl.coalesce(following, "end_ns"), **dict.fromkeys(UNKNOWN, pl.lit(None, pl.Int64)),
        **{"pass": pl.lit("trace")}).with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))


def _recorded_waits(rows: pl.DataFrame) -> dict[int, Intervals]:
    """Returns when ranks waited, for ranks whose recorder saw it."""
    if not set(COLUMNS) <= set(rows.columns):
        return {}
    waits = rows.select("rank", *COLUMNS).drop_nulls()
    return {int(key[0]): Intervals.of(*(part[name].to_numpy() for name in COLUMNS))
            for key, part in waits.partition_by("rank", as_dict=True).items()}
