"""All data of a run that is compared with another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.passes import TIME
from distprof.contract.paths import MEMORY_JSON, RUN_JSON
from distprof.contract.problems import Problem
from distprof.contract.rank_json import read
from distprof.contract.run_json import RunJson
from distprof.errors import DataError
from distprof.merge.activity.intervals import NOTHING
from distprof.merge.activity.rank_activity import RankCollectives, rank_activity
from distprof.merge.cost.measured_run import MeasuredRun, measured_run
from distprof.merge.difference.samples import FEWEST_STEPS, Samples, common_cells, correlation
from distprof.merge.difference.split import activities, collectives_of, modules_of, operators_of, parts_of, timed_parts
from distprof.merge.memory.run_memory import run_memory
from distprof.merge.operators.run_operators import run_operators
from distprof.merge.program.run_program import RunProgram, run_program
from distprof.merge.run.merged import is_merge, origin_of
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Run
from distprof.merge.totals.description import problems_of, without_tables
from distprof.merge.totals.recorded_tables import RecordedTables, read_tables
from distprof.merge.totals.step_time import LIGHT, TRACED, StepTime, light_passes, on_device, settled
from distprof.merge.totals.summary import reduce
from distprof.merge.totals.workload import Unit, Workload, workload

NO_COLLECTIVES = RankCollectives(**{one.name: np.empty(0, np.int64) for one in fields(RankCollectives)})
PASSES = (*LIGHT, *(name for names in TRACED for name in names))
"""Passes that step times are taken from."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A run, and what its ranks did."""

    path: Path
    """As the user named it."""
    measured: MeasuredRun
    tables: RecordedTables | None
    """None for traces of other programs."""
    program: RunProgram
    peak: float | None = None
    """Peak FLOP/s of each rank's device, in place of the published rate."""

    @property
    def run(self) -> Run:
        return self.measured.run

    @property
    def problems(self) -> Sequence[Problem]:
        """What is incomplete."""
        found = list(self.tables.problems) if self.tables is not None else []
        return list(dict.fromkeys([*problems_of(self.run, self.measured.clock), *found, *self.program.problems]))

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """What `stats --json` prints, without communication."""
        if self.tables is None:
            return without_tables(self.run, self.measured.clock)
        return reduce(replace(self.measured, collectives=None), self.tables, peak=self.peak)[0]

    @property
    def modules(self) -> pl.DataFrame:
        """`MERGED_MODULES`; no rows for traces of other programs."""
        return pl.DataFrame() if self.tables is None else self.tables.modules

    @property
    def has_module_table(self) -> bool:
        """True if modules were recorded."""
        return self.tables is not None and not self.tables.modules.is_empty()

    @cached_property
    def _traced(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        return activities(self.program)

    @property
    def has_timeline(self) -> bool:
        """True if counted steps have a timeline, on all ranks that have any."""
        return not self._traced[1].is_empty()

    @property
    def has_device_timeline(self) -> bool:
        """True if timelines show the kernels of all ranks, whose times do not depend on whether they are recorded."""
        return self.has_timeline and all(did.on_device for did in self.program.did.values())

    @property
    def has_modules(self) -> bool:
        """True if timelines show calls of modules."""
        return not self._traced[0].filter(pl.col("kind") == "forward", pl.col("where").is_not_null()).is_empty()

    @cached_property
    def passes(self) -> list[str]:
        """Those of `PASSES` that have counted steps."""
        return [name for name in PASSES if len(self.steps_of((name,)))]

    @cached_property
    def light_passes(self) -> Sequence[str]:
        """Passes without heavy instrumentation."""
        return light_passes(self._steps)

    @property
    def _steps(self) -> pl.DataFrame:
        return on_device(self.tables.steps if self.tables is not None else self.program.windows)

    def steps_of(self, passes: Sequence[str]) -> pl.DataFrame:
        """Returns the counted steps of some passes: `step`, `rank`, `duration_ns` and what threads did."""
        return settled(self._steps, passes)

    def step_samples(self, passes: Sequence[str], column: str = "duration_ns") -> Samples | None:
        """Returns durations, or another column, of these steps; None if there are none."""
        cells = common_cells(self.steps_of(passes).drop_nulls(column))
        if cells.is_empty():
            return None
        rows = cells.select("step", "rank", what=pl.lit("step"), ns=pl.col(column).cast(pl.Float64))
        return self._knowing(Samples.from_rows(rows, ["what"], common_cells(rows)))

    def _knowing(self, samples: Samples) -> Samples:
        """Adds the correlation of steps known from more steps, if these are few."""
        return replace(samples, alike=self._alike) if len(samples.values) < FEWEST_STEPS else samples

    @cached_property
    def _alike(self) -> float | None:
        """Correlation of steps in the pass with the most steps; None if these are too few."""
        each = (self.steps_of((name,)).group_by("step").agg(pl.col("duration_ns").mean()).sort("step")
                for name in PASSES)
        longest = max(each, key=len)["duration_ns"].to_numpy()
        return correlation(longest) if len(longest) >= FEWEST_STEPS else None

    @cached_property
    def parts(self) -> Samples:
        """Parts of the traced steps."""
        return self._knowing(parts_of(*self._traced))

    @cached_property
    def timed_parts(self) -> Samples | None:
        """Parts of the steps of the time pass; None if there are none."""
        if self.tables is None or not (self.tables.steps["pass"] == TIME).any():
            return None
        return self._knowing(timed_parts(self.tables.steps)[0])

    @cached_property
    def module_times(self) -> Samples:
        """Modules in traced steps."""
        return self._knowing(modules_of(*self._traced))

    @cached_property
    def operators(self) -> Samples | None:
        """Operators in traced steps; None if the traces are gone."""
        try:
            return self._knowing(operators_of(run_operators(self.run).rows, self._traced[1]))
        except DataError:
            return None

    @cached_property
    def collectives(self) -> tuple[Samples, pl.DataFrame] | None:
        """Time in collectives of traced steps; None if they contain no communication."""
        rows = self.measured.collectives
        if rows is None or rows.is_empty() or not self.has_timeline:
            return None
        samples, counts = collectives_of(rows, self._traced[1])
        return None if counts.is_empty() else (self._knowing(samples), counts)

    @property
    def is_on_devices(self) -> bool:
        """True if all ranks are known to compute on devices, not on processors."""
        return all(rank.device_name is not None if rank.recorded is None
                   else rank.recorded.device_type not in ("", "cpu") for rank in self.run.ranks)

    @cached_property
    def queued_ratio(self) -> float | None:
        """Share of step time in which a thread waited in the run queue for a processor; None if unknown."""
        if self.tables is None:
            return None
        known = self.tables.steps.drop_nulls("run_queue_ns")
        total = int(known["duration_ns"].sum())
        return int(known["run_queue_ns"].sum()) / total if total else None

    @cached_property
    def workload(self) -> Workload | None:
        """How much data steps process; None if unknown."""
        return self.workload_in(None)

    def workload_in(self, unit: Unit | None) -> Workload | None:
        """Returns the workload in a given unit."""
        return None if self._usual is None or self.tables is None else workload(self.tables.steps, self._usual, unit)

    @cached_property
    def _usual(self) -> StepTime | None:
        return None if self.tables is None else self.tables.step_time

    @cached_property
    def peak_bytes(self) -> float | None:
        """Peak allocated bytes on a device of any rank; None if no allocations were recorded."""
        if not any((rank.folder / MEMORY_JSON).is_file() for rank in self.run.ranks) and self.tables is not None:
            return None
        try:
            return float(max(peak.peak_bytes for peak in run_memory(self.run).peaks))
        except DataError:
            return None

    @cached_property
    def launched(self) -> RunJson | None:
        """Contents of run.json; None if it cannot be read."""
        try:
            return read(self.run.path / RUN_JSON, RunJson)
        except DataError:
            return None


def observe(path: Path, *, peak: float | None = None) -> Observed:
    """Reads a run directory, its merge, or traces of other programs.

    Args:
        path: Where it is.
        peak: Peak FLOP/s of each rank's device, in place of the published rate.

    Raises:
        DataError: It cannot be read.
    """
    paths = origin_of(path)
    if paths == (path,) and is_merge(path):
        raise DataError(f"{path} holds only a merge, not a run with its ranks",
                        hint="pass the run directory that it was made from")
    measured = measured_run(open_run(*paths))
    tables = read_tables(measured.run) if measured.run.kind == "distprof" else None
    assert measured.collectives is not None
    program = run_program(measured.run, measured.clock, measured.collectives,
                          tables.steps if tables is not None else None)
    return Observed(path=path, measured=measured, tables=tables, program=_with_lonely_ranks(program), peak=peak)


def _with_lonely_ranks(program: RunProgram) -> RunProgram:
    """Adds what ranks did that called no collective."""
    alone = {rank: rank_activity(events, NO_COLLECTIVES, program.activities, waits_drawn=True, recorded=NOTHING)
             for rank in program.timelines if rank not in program.did and len(events := program.timelines[rank])}
    return replace(program, did=dict(sorted({**program.did, **alone}.items())))
