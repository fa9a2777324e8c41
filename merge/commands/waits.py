"""Makes the text of `distprof waits`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.paths import FORMAT
from distprof.contract.problems import Problem
from distprof.errors import UsageError
from distprof.merge.activity.device.mean_steps import settled_steps
from distprof.merge.activity.device.rank_device import DeviceSteps
from distprof.merge.commands.incomplete import fail_if_incomplete
from distprof.merge.commands.table_files import as_csv
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Run
from distprof.merge.text.communication.device_steps import devices_data
from distprof.merge.text.waits import WaitsShown, render
from distprof.merge.waits.queues import summed_queues
from distprof.merge.waits.run_waits import RunWaits, grouped, run_waits
from distprof.merge.waits.script_lines import script_lines
from distprof.merge.waits.traced_waits import compilation_totals, grouped_compilations
from distprof.reporters.page import Page
from distprof.units import spans


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsView:
    """Which waits are shown, and how."""

    by: Sequence[str] = ("line", "op")
    sort: str = "blocked_ns"
    top: int | None = None
    """All without; 20 in text."""
    ranks: Sequence[int] = ()
    """All without."""
    steps: Sequence[int] = ()
    """All without."""
    form: str = "text"
    """text, json or csv."""
    queues: bool = False
    """Reads timelines for the queues of devices, where waits do not need them."""


def waits(path: Path, *more: Path, view: WaitsView, strict: bool = False) -> str:
    """Waits of a run as text.

    Args:
        path: A run directory, or traces of other programs.
        *more: Further run directories of the same job.
        view: Which, and how they are shown.
        strict: Fail where something is missing.

    Raises:
        DataError: The run cannot be read, or nothing shows waits.
        UsageError: There is no such name, rank or step.
        IncompleteError: Something is missing and `strict` is set.
    """
    run = open_run(path, *more)
    found = run_waits(run, queues=view.queues)
    problems: list[Problem] = [*run.problems, *found.problems]
    fail_if_incomplete(problems, strict=strict)
    rows, steps = _chosen(found, view)
    total_ns = int(steps["duration_ns"].sum())
    table = grouped(rows, view.by, sort=view.sort, total_ns=total_ns)
    if view.form == "json":
        return json.dumps(_data(run, found, view, rows, steps, table), indent=1)
    if view.form == "csv":
        return as_csv(table.head(view.top) if view.top else table)
    shown = WaitsShown(run=run, found=found, rows=rows, steps=steps, compilations=_chosen_of(found.compilations, view),
                       queue_rows=_queue_rows(found, view), devices=_devices(found, view), table=table,
                       by=tuple(dict.fromkeys(view.by)),
                       lines=_lines(run, view), ranks=_ranks(found, view), top=view.top, queues=view.queues,
                       paths=(path, *more), problems=problems)
    return render(shown, Page())


def _lines(run: Run, view: WaitsView) -> pl.DataFrame:
    """Of all ranks and steps: samples of a few are too few."""
    return script_lines(run) if not view.ranks and not view.steps else script_lines(run).clear()


def _chosen(found: RunWaits, view: WaitsView) -> tuple[pl.DataFrame, pl.DataFrame]:
    known = sorted({*found.steps["step"].to_list(), *found.rows["step"].to_list(),
                    *found.compilations["step"].drop_nulls().to_list(),
                    *(found.queues["step"].to_list() if found.queues is not None else ())})
    rows, steps = found.rows, found.steps.filter(pl.col("rank").is_in(found.ranks))
    for option, wanted, there, column in (("--rank", view.ranks, sorted(found.ranks), "rank"),
                                          ("--step", view.steps, known, "step")):
        for one in wanted:
            if one not in there:
                raise UsageError(f"{option} {one} is not in this run; "
                                 + (f"choose from {spans(there)}" if there else "it has none"))
        if wanted:
            rows, steps = (frame.filter(pl.col(column).is_in(wanted)) for frame in (rows, steps))
    return rows, steps


def _ranks(found: RunWaits, view: WaitsView) -> list[int]:
    return sorted(set(view.ranks) or found.ranks)


def _data(run: Run, found: RunWaits, view: WaitsView, rows: pl.DataFrame, steps: pl.DataFrame,
          table: pl.DataFrame) -> dict[str, Any]:
    return {
        "format": FORMAT, "kind": "waits", "source": found.source,
        "ranks": _ranks(found, view), "world_size": run.world_size,
        "steps": sorted({*steps["step"].to_list(), *rows["step"].to_list()}),
        "totals": {"calls": int(rows["calls"].sum()), "blocked_ns": int(rows["blocked_ns"].sum()),
                   "blocking_calls": int(rows.filter("blocking")["calls"].sum()),
                   "steps_ns": int(steps["duration_ns"].sum()) if len(steps) else None},
        "waits": (table.head(view.top) if view.top else table).rename({"module_path": "module"}).to_dicts(),
        "lines": _lines(run, view).to_dicts(), "compilations": _compiled(found, view),
        "queues": _queue_data(found, view), "devices": devices_data(_devices(found, view))}


def _compiled(found: RunWaits, view: WaitsView) -> dict[str, Any]:
    """Totals, and a row for what is alike."""
    rows = _chosen_of(found.compilations, view)
    table = grouped_compilations(rows)
    return {"totals": compilation_totals(rows),
            "rows": (table.head(view.top) if view.top else table).rename({"module_path": "module"}).to_dicts()}


def _queue_data(found: RunWaits, view: WaitsView) -> list[dict[str, Any]] | None:
    rows = _queue_rows(found, view)
    return None if rows is None else summed_queues(rows).to_dicts()


def _devices(found: RunWaits, view: WaitsView) -> DeviceSteps:
    """Of the chosen ranks and steps; without a choice those that `comms` shows too."""
    devices = found.devices.of_ranks(view.ranks or found.ranks)
    return devices.of_steps(view.steps or settled_steps(sorted(set(devices.steps["step"].to_list()))))


def _queue_rows(found: RunWaits, view: WaitsView) -> pl.DataFrame | None:
    return None if found.queues is None else _chosen_of(found.queues, view)


def _chosen_of(frame: pl.DataFrame, view: WaitsView) -> pl.DataFrame:
    """Rows of the chosen ranks and steps; without a choice also those of no recorded step."""
    wanted = [pl.col(name).is_in(some) for name, some in (("rank", view.ranks), ("step", view.steps)) if some]
    return frame.filter(*wanted) if wanted else frame
