"""Gives access to a run as polars frames, for notebooks and your own programs."""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.paths import MERGED, RUN_JSON
from distprof.contract.tables import COMPILATIONS, EVENTS, STEPS
from distprof.errors import DataError
from distprof.merge.clock.model import on_common_clock
from distprof.merge.cost.measured_run import MeasuredRun, measured_run
from distprof.merge.memory.run_memory import run_memory
from distprof.merge.operators.merged_operators import Opened, run_of_merge
from distprof.merge.operators.rank_share import as_texts
from distprof.merge.operators.run_operators import RunOperators, run_operators
from distprof.merge.report.document import document
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.scanned_tables import scan_table
from distprof.merge.run.tables import read_table, readable
from distprof.merge.text.findings import findings_data
from distprof.merge.totals.modules import read_modules
from distprof.merge.totals.run_summary import run_summary
from distprof.merge.waits.run_waits import run_waits
from distprof.storage.places import place
from distprof.terminal import quoted

FINDINGS = {"severity": pl.String(), "text": pl.String(), "detail": pl.String(), "rank": pl.Int64(),
            "step": pl.Int64(), "module": pl.String(), "cause": pl.String(), "file": pl.String(), "line": pl.Int64(),
            "gain_ns": pl.Float64(), "gain_error_ns": pl.Float64(), "step_ns": pl.Float64(), "p_value": pl.Float64(),
            "next": pl.String()}
"""Columns of `findings()`; null if a finding is not about a rank, module or line."""


class RunFrames:
    """A run whose parts are read when you first ask for them. Times are on the common clock of all ranks, in ns."""

    def __init__(self, path: str | Path, *more: str | Path) -> None:
        """Opens a run; see `read_run`."""
        self._given = (path, *more)
        if not all(map(_is_listed, self._given)):
            _ = self._run  # a path that is not a run is refused at once

    @cached_property
    def _opened(self) -> Opened:
        return run_of_merge(*map(place, self._given))

    @property
    def _paths(self) -> tuple[Path, ...]:
        return self._opened.paths

    @cached_property
    def _run(self) -> Run:
        return open_run(*self._paths)

    def scan(self, table: str, *, ranks: Collection[int] | None = None) -> pl.LazyFrame:
        """A table written by each rank, over all ranks, as a lazy frame: a query reads only the columns and rows that
        it needs.

        Nothing is opened until you ask for a result, so it starts at once even with 10,000 ranks. Times are on each
        rank's own clock; `steps()`, `collectives()` and `events()` have them on the common clock.

        Args:
            table: `steps`, `modules`, `ops`, `collectives`, `events`, `parameters`, or one from a pass that was
                requested: `waits`, `tensors`, `uses`, `execution_collectives`, `compilations`. docs/run-directory.md
                describes the columns; `rank` is one of them.
            ranks: Open only the files of these ranks. Default: all.

        Returns:
            A frame without rows if no rank has the table.

        Raises:
            UsageError: There is no such table.
            DataError: The run directory cannot be listed.
        """
        places = self._given if all(map(_is_listed, self._given)) else self._paths
        return scan_table(places, table, ranks)

    @property
    def ranks(self) -> list[int]:
        """Numbers of the ranks found."""
        return [rank.number for rank in self._run.ranks]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What `distprof stats --json` prints."""
        found: dict[str, Any] = json.loads(json.dumps(run_summary(self._paths)))
        return found

    def findings(self) -> pl.DataFrame:
        """What is wrong with the run, worst first: at most 10 rows, with the rank, module, cause and line of each.

        Raises:
            DataError: The run cannot be read.
        """
        found = findings_data(document(*self._paths))["findings"]
        return pl.DataFrame(map(_finding_row, found), FINDINGS)

    def _repr_html_(self) -> str:
        """The findings, in a notebook."""
        items = "".join(f"<li>{html.escape(text)}</li>" for text in self.findings()["text"])
        return f"<b>{html.escape(self._paths[0].name)}</b><ul>{items}</ul>"

    def ops(self, *, stack: int = 0) -> pl.DataFrame:
        """Operators of all ranks: one row for all calls of a rank that share operator, shapes, module, phase and step.

        docs/operators.md describes the columns.

        Args:
            stack: Also group calls by this many Python functions around them, in the column `stack`.

        Raises:
            DataError: No rank has a timeline.
        """
        found = run_operators(self._run, num_frames=stack) if stack else self._operators
        return as_texts(found.rows.drop("squared_ns"))

    def memory(self) -> pl.DataFrame:
        """Allocations of all ranks: those of the memory pass, or of a trace with `profile_memory=True`.

        docs/memory.md describes the columns.

        Raises:
            DataError: No rank has any.
        """
        return run_memory(self._run).rows.drop("first", "last")

    def modules(self) -> pl.DataFrame:
        """Modules, reduced over ranks: the columns of `merged/modules.parquet`.

        Raises:
            DataError: distprof did not record it.
        """
        return read_modules(self._recorded("modules")).rows

    def steps(self) -> pl.DataFrame:
        """Steps of all ranks: the columns of `merged/steps.parquet`.

        Raises:
            DataError: distprof did not record it.
        """
        steps = read_table(self._recorded("steps"), STEPS).rows
        return on_common_clock(self._measured.clock, steps, ("start_ns", "end_ns"))

    def collectives(self) -> pl.DataFrame:
        """Collectives of all ranks, matched: the columns of `merged/collectives.parquet`."""
        assert self._measured.collectives is not None
        return self._measured.collectives

    def events(self) -> pl.DataFrame:
        """The timelines of all ranks: from the merge if there is one, otherwise those that the ranks recorded.

        Raises:
            DataError: There is neither.
        """
        merged = self._run.path / MERGED / EVENTS.file
        if merged.is_dir():
            return pl.concat([pl.read_parquet(readable(path), glob=False) for path in sorted(merged.iterdir())])
        if self._run.kind == "traces":
            raise DataError(f"no merge with {EVENTS.file} in {self._run.path}",
                            hint=f"distprof merge {quoted(self._run.path)}")
        return on_common_clock(self._measured.clock, read_table(self._run, EVENTS).rows, ("start_ns",))

    def waits(self) -> pl.DataFrame:
        """What blocks the ranks: one row per rank, step, line, call, module, phase and thread.

        docs/waits.md describes the columns.

        Raises:
            DataError: The sync pass was not recorded, and no rank has a timeline.
        """
        return run_waits(self._run).rows

    def compilations(self) -> pl.DataFrame:
        """What torch.compile did since the start of the recording: one row per rank, compilation and graph break.

        docs/run-directory.md describes the columns of `compilations.parquet`.

        Raises:
            DataError: distprof did not record it.
        """
        return read_table(self._recorded("compilations"), COMPILATIONS).rows

    @cached_property
    def _operators(self) -> RunOperators:
        return run_operators(self._run, merge=self._opened.merge)

    @cached_property
    def _measured(self) -> MeasuredRun:
        return measured_run(self._run)

    def _recorded(self, what: str) -> Run:
        if self._run.kind == "traces":
            raise DataError(f"{self._run.path} has foreign traces without {what}, which distprof run records")
        return self._run


def read_run(path: str | Path, *more: str | Path) -> RunFrames:
    """Opens a run, for example in a notebook: `distprof.read_run("runs/a").ops()`.

    Args:
        path: A run directory, or foreign traces: a folder, a single trace or an archive.
        *more: Run directories written by other hosts for the same job, or more traces.

    Returns:
        Its parts as polars frames: `findings()`, `ops()`, `modules()`, `steps()`, `collectives()`, `events()`,
        `memory()`, `waits()`, `compilations()`; as lazy frames over all ranks: `scan("steps")`; and `summary`.

    Raises:
        DataError: Nothing can be read, or its parts contradict each other.
    """
    return RunFrames(path, *more)


def _is_listed(path: str | Path) -> bool:
    """Returns whether a path is known to be a run without opening it, which would read a file per rank."""
    return "://" in str(path) or (Path(path) / RUN_JSON).is_file()


def _finding_row(one: Mapping[str, Any]) -> dict[str, Any]:
    cause = one.get("cause") or {}
    line = cause.get("line") or {}
    return {name: one.get(name) for name in FINDINGS} | {
        "cause": cause.get("kind"), "file": line.get("file"), "line": line.get("line")}
