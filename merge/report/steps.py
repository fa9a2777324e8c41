"""Sections on steps: their parts, each step of each rank, the critical path, and where hosts wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from distprof.contract.passes import ARRIVALS, TRACE
from distprof.errors import DataError
from distprof.merge.activity.breakdown import PARTS
from distprof.merge.activity.device.mean_steps import counted_steps, host_meanwhile, mean_device_steps
from distprof.merge.activity.device.rank_device import DeviceSteps
from distprof.merge.activity.device.steps import CAUSES
from distprof.merge.activity.device.steps import PARTS as DEVICE_PARTS
from distprof.merge.critical.device import sums
from distprof.merge.critical.device.run_paths import DevicePaths
from distprof.merge.critical.grouping import by_collective, by_kind, by_module, by_op, by_rank
from distprof.merge.report.section import AbsentError, Columns, Sample, columns_of, columns_of_rows
from distprof.merge.report.sources import Sources
from distprof.merge.text.communication.device_steps import doubts_of
from distprof.merge.totals.step_time import parts_of_step
from distprof.merge.totals.totals import per_rank
from distprof.merge.waits.run_waits import grouped
from distprof.merge.waits.script_lines import script_lines as lines_of
from distprof.merge.waits.traced_waits import compilation_totals, grouped_compilations
from distprof.units import counted

OF_TRACE = tuple(f"{part}_ns" for part in PARTS)
MORE_OF_TRACE = ("message_waiting_ns", "overlapped_ns", "overlap_ratio")
OF_TIME = ("before_forward_ns", "fwd_ns", "bwd_ns", "optimizer_ns", "other_ns")
OF_DEVICE = (*(f"{part}_ns" for part in DEVICE_PARTS if part != "idle"), *(f"{cause}_idle_ns" for cause in CAUSES))
"""Parts of a step of a device, with idle time by its cause."""
MOST_MEANWHILE = 8
"""Maximum number of host activities that are listed for the time in which devices wait for hosts."""
TIMED = ("time", TRACE, ARRIVALS)
"""Passes whose steps last as long as those of the job, or nearly."""
MOST_CELLS = 20_000
MOST_OF_PATH = 30
MOST_WAITS = 50
MOST_LINES = 20


def step_parts(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Returns the parts of each rank's step time, from steps with a timeline, else from those with module timers.

    Raises:
        AbsentError: There are neither.
    """
    analysis, devices = sources.comms.analysis, sources.comms.devices
    if not devices.steps.is_empty():
        return _of_devices(devices, sample)
    # without timelines, some parts of a step are unknown
    if analysis is not None and analysis.breakdown["compute_ns"].count():
        names, rows = ("duration_ns", *OF_TRACE, *MORE_OF_TRACE), parts_of_step(
            analysis.breakdown, sources.comms.step_time)
        shown = [row for row in rows if row["rank"] in set(sample.ranks)]
        return {"source": "trace", "parts": list(OF_TRACE), "steps": analysis.steps,
                "by_rank": columns_of_rows(shown, ("rank", *names)),
                "mean": _mean(pl.DataFrame(rows, infer_schema_length=None), names)}
    if sources.is_recorded:
        ranks = per_rank(sources.run, sources.tables).filter(pl.col("step_ns").is_not_null())
        if not ranks.is_empty():
            return _of_time_pass(sources, ranks, sample)
    raise AbsentError("step breakdown unknown: no step was timed",
                      remedy="record it with --steps time=3,trace=6")


def _of_devices(devices: DeviceSteps, sample: Sample) -> dict[str, Any]:
    """Returns steps of devices, which are not mixed with steps of hosts: `duration_ns` is that of the device."""
    ranks = mean_device_steps(devices).rename({"device_step_ns": "duration_ns"})
    names = ("duration_ns", *OF_DEVICE, "idle_ns", "overlapped_ns")
    return {"source": "device", "parts": list(OF_DEVICE),
            "steps": counted_steps(devices.steps)["step"].unique().sort().to_list(),
            "by_rank": columns_of(ranks.filter(pl.col("rank").is_in(sample.ranks)).select("rank", "device", *names)),
            "mean": _mean(ranks, names),
            "meanwhile": host_meanwhile(devices, with_modules=False).head(MOST_MEANWHILE).to_dicts(),
            "doubts": list(doubts_of(devices))}


def _of_time_pass(sources: Sources, ranks: pl.DataFrame, sample: Sample) -> dict[str, Any]:
    known = OF_TIME[:-1]
    split = ranks.select("rank", pl.col("step_ns").alias("duration_ns"), pl.col(known).fill_null(0)).with_columns(
        other_ns=pl.col("duration_ns") - pl.sum_horizontal(known))
    steps = sources.tables.steps["step"].filter(sources.tables.steps["pass"] == "time").unique().sort().to_list()
    return {"source": "time", "parts": list(OF_TIME), "steps": steps,
            "by_rank": columns_of(split.filter(pl.col("rank").is_in(sample.ranks))),
            "mean": _mean(split, ("duration_ns", *OF_TIME))}


def _mean(ranks: pl.DataFrame, names: tuple[str, ...]) -> dict[str, float | None]:
    """Returns means over all ranks, including those that are not shown."""
    return ranks.select(pl.col(names).mean()).row(0, named=True)


def heat_map(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Returns every recorded step of the shown ranks.

    Raises:
        AbsentError: No step was timed.
    """
    windows = sources.tables.steps if sources.is_recorded else sources.program[0].windows
    cells = windows.filter(pl.col("pass").is_in(TIMED), pl.col("rank").is_in(sample.ranks)).select(
        "rank", "step", "pass", "duration_ns")
    if cells.is_empty():
        raise AbsentError("no step was timed", remedy="record some with --steps time=3,trace=6,arrivals=20")
    analysis = sources.comms.analysis
    split = None if analysis is None else analysis.exposure.group_by("rank", "step").agg(
        pl.col("waiting_ns", "compute_ns").sum())
    cells = _of_some_steps(cells, sample)
    if split is None:
        cells = cells.with_columns(waiting_ns=None, compute_ns=None)
    else:
        cells = cells.join(split, on=("rank", "step"), how="left", maintain_order="left")
    return {"by": columns_of(cells.with_columns(
        counted=(pl.col("pass") == "time") | pl.col("step").is_in(sources.counted_steps)).sort("step", "rank"))}


def _of_some_steps(cells: pl.DataFrame, sample: Sample) -> pl.DataFrame:
    steps = cells["step"].unique().sort()
    most = max(MOST_CELLS // max(cells["rank"].n_unique(), 1), 1)
    if len(steps) <= most:
        return cells
    chosen = steps.gather([index * len(steps) // most for index in range(most)])
    sample.left_out.append(f"the heat map shows {counted(most, 'step')} of {len(steps)}, evenly spaced")
    return cells.filter(pl.col("step").is_in(chosen.implode()))


def pipeline(sources: Sources) -> dict[str, Any]:
    """Returns how pipeline stages spent their steps.

    Raises:
        AbsentError: There are no stages, or it is unknown.
    """
    found: Mapping[str, Any] = sources.summary["communication"] or {}
    stages: dict[str, Any] | None = found.get("pipeline")
    if stages is None:
        if sources.opened.topology.get("pp", 1) < 2:
            raise AbsentError("the job has no pipeline stages")
        raise AbsentError("how pipeline stages spent their steps is unknown",
                          remedy="record it with --steps trace=6")
    return stages


def critical_path(sources: Sources) -> dict[str, Any]:
    """Returns the critical path as times per step, means over steps.

    Raises:
        AbsentError: The ranks cannot be put into one graph.
    """
    if not sources.is_one_graph:
        raise AbsentError("the critical path of so many ranks is not part of a report",
                          remedy="see distprof critical-path")
    try:
        if (devices := sources.device_paths) is not None:
            return _through_devices(devices)
    except DataError as error:
        raise AbsentError("no critical path: too many launches or commands of the device are missing") from error
    try:
        found, path = sources.replayable, sources.critical_path
    except DataError as error:
        raise AbsentError("no critical path: it needs steps with collectives whose times and waits are known, on "
                          "clocks that were compared") from error
    durations = path.durations.select(duration_ns=pl.col("end_ns") - pl.col("start_ns"))["duration_ns"]
    tables = {"by_rank": by_rank(path), "by_module": by_module(path), "by_op": by_op(path),
              "by_collective": by_collective(path, found.program.rows)}
    return {"steps": path.steps, "duration_ns": durations.mean(), "by_kind": by_kind(path),
            "ranks_with_guessed_waits": found.guessed, **_longest(tables)}


def _through_devices(found: DevicePaths) -> dict[str, Any]:
    path = found.path
    durations = path.steps.select(duration_ns=pl.col("end_ns") - pl.col("start_ns"))["duration_ns"]
    tables = {"by_rank": sums.by_device(path), "by_module": sums.by_module(path), "by_op": sums.by_op(path)}
    return {"through": "device", "steps": found.steps, "duration_ns": durations.mean(), "by_kind": sums.by_kind(path),
            **_longest(tables)}


def _longest(tables: Mapping[str, pl.DataFrame]) -> dict[str, Columns]:
    return {name: columns_of(table.head(MOST_OF_PATH).rename({"module_path": "module"}, strict=False))
            for name, table in tables.items()}


def script_lines(sources: Sources) -> Columns:
    """Returns the lines of the script with the most time per step.

    Raises:
        AbsentError: No samples were taken.
    """
    found = lines_of(sources.in_detail, sources.steps_in_detail)
    if found.is_empty():
        raise AbsentError("no lines of the script were sampled", remedy="record them with --steps trace=6")
    return columns_of(found.head(MOST_LINES))


def waits(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Returns rows by line and operator that blocked, most time first.

    Raises:
        AbsentError: Nothing shows waits.
    """
    try:
        found = sources.waits
    except DataError as error:
        raise AbsentError("host waits were not recorded",
                          remedy="record them, with lines of the script, using --steps sync=2") from error
    steps = found.steps.filter(pl.col("rank").is_in(found.ranks))
    table = grouped(found.rows, ("line", "op"), sort="blocked_ns", total_ns=int(steps["duration_ns"].sum()))
    blocking = table.filter(pl.col("blocked_ns") > 0)
    if len(blocking) > MOST_WAITS:
        sample.left_out.append(f"{counted(MOST_WAITS, 'row')} of {len(blocking)} host waits are shown")
    compiled = grouped_compilations(found.compilations)
    return {"source": found.source, "steps": sorted({*steps["step"].to_list(), *found.rows["step"].to_list()}),
            "total_ns": int(steps["duration_ns"].sum()) if len(steps) else None,
            "rows": columns_of(blocking.head(MOST_WAITS).rename({"module_path": "module"})),
            "compilations": {"totals": compilation_totals(found.compilations),
                             "rows": columns_of(compiled.head(MOST_WAITS).rename({"module_path": "module"}))}}
