"""Shows `distprof critical-path` of a device, the chain through launches, streams and the host; and makes its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.problems import Problem, Remark
from distprof.merge.clock.choose import runs_as_told
from distprof.merge.critical.device.run_paths import DevicePaths
from distprof.merge.critical.device.sums import (
    by_device,
    by_kind,
    by_module,
    by_op,
    calls_on_path,
    lines_on_path,
    off_path,
)
from distprof.merge.critical.device.walk import KINDS
from distprof.merge.text.critical import DESCRIBED, SLOWED, TOP, more_rows, mostly_on, place, time_or_none
from distprof.merge.text.phrases import cut, short_names, step_time_words
from distprof.merge.text.problems import sentence, show_problems
from distprof.merge.totals.description import described
from distprof.merge.totals.step_time import StepTime, step_time_data
from distprof.reporters.page import Page
from distprof.units import UNKNOWN, counted, duration, percent, spans

TITLES = {**{kind: kind for kind in KINDS}, "unshown": "not shown"}
"""Kind -> title of its column."""
LEAST = 0.005
"""Runtime calls, and kinds in the second line, are named from this share of the path on."""
NAMED_CALLS, NAMED_LINES = 3, 3
ENOUGH_SAMPLES = 3
"""Lines are named from this many samples on."""
OFF_ROWS = 5
"""Number of commands off the path that are listed."""
DOUBTFUL = 0.05
"""From this share of the path on, it is explained what the timeline does not show."""
WORDS = ("mean per step; latency: from a launch until its command begins; gaps: from the end of a command until the",
         "one that waited for it begins; waking: from the end of a command until the call that waited for it returns")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePathsShown:
    """What the screen shows."""

    found: DevicePaths
    top: int | None
    """Number of rows of a table, if given."""
    problems: Sequence[Problem]
    remarks: Sequence[Remark]
    paths: Sequence[Path]
    step_time: StepTime | None
    """Step time of the job."""


def render(shown: DevicePathsShown, page: Page) -> str:
    """Returns the screen as text."""
    found, path = shown.found, shown.found.path
    ranks = path.steps["rank"].n_unique()
    page.line("; ".join([f"{counted(ranks, 'rank')}, {counted(len(found.steps), 'step')} ({spans(found.steps)})",
                         *map(sentence, shown.remarks)]))
    if shown.step_time is not None:
        page.line(f"step {step_time_words(shown.step_time)}")
    for line in _head(shown):
        page.line(line)
    page.line()
    devices = by_device(path)
    _devices(devices, page)
    _modules(shown, page)
    _operators(shown, page)
    _off(shown, devices, page)
    if lines := list(_doubts(shown)):
        for line in lines:
            page.line(line)
        page.line()
    if shown.problems or found.run.remarks:
        show_problems(found.run.remarks, shown.problems, page)
        page.line()
    where = runs_as_told(shown.paths)
    page.line(f"Next: distprof comms {where}")
    if len(found.steps) > 1:
        slowest = path.steps.sort(pl.col("end_ns") - pl.col("start_ns"))["step"].to_list()[-1]
        page.line(f"      distprof critical-path --step {slowest} {where}")
    return page.text()


def _head(shown: DevicePathsShown) -> Iterator[str]:
    path = shown.found.path
    each = (path.steps["end_ns"] - path.steps["start_ns"]).to_numpy()
    most = "" if len(each) == 1 else f" ({duration(each.min())} to {duration(each.max())})"
    kinds = ", ".join(f"{duration(ns)} {TITLES[kind]}" for kind, ns in by_kind(path).items()
                      if ns >= LEAST * each.mean())
    until = "that of the next" if path.steps["is_whole"].all() else "the last one, or the end of the step on the host"
    yield (f"critical path of the device: {duration(each.mean())}{most} from the first command of a step to {until}: "
           f"{kinds}")
    usual = shown.step_time
    if usual is not None and usual.is_light and each.mean() >= SLOWED * usual.time_ns:
        yield "these steps ran with the profiler, which slows the host: the path is longer than the step time"


def _devices(devices: pl.DataFrame, page: Page) -> None:
    several = devices["rank"].is_duplicated().any()
    kinds = [kind for kind in KINDS if devices[f"{kind}_ns"].sum()]
    page.table(("rank", "on the path", "in steps", *(TITLES[kind] for kind in kinds)), [
        (f"rank {row['rank']}" + (f" device {row['device']}" if several else ""), duration(row["time_ns"]),
         str(row["steps"]), *(_part(row[f"{kind}_ns"], row["time_ns"]) for kind in kinds))
        for row in devices.iter_rows(named=True)])
    for line in WORDS:
        page.line(line)
    page.line()


def _part(ns: float, whole: float) -> str:
    return f"{duration(ns)} {percent(ns / max(whole, 1))}" if ns else UNKNOWN


def _modules(shown: DevicePathsShown, page: Page) -> None:
    path, rows = shown.found.path, shown.top or TOP
    table, several = by_module(path), path.steps["rank"].n_unique() > 1
    page.table(("module", "phase", "on the path", "of it", "in steps", "host", "commands", "between",
                *(("mostly on",) if several else ())), [
        (place(row), row["phase"], duration(row["time_ns"]), percent(row["ratio"]), str(row["steps"]),
         *(time_or_none(row[f"{one}_ns"]) for one in ("host", "device", "rest")),
         *((mostly_on(row),) if several else ())) for row in table.head(rows).iter_rows(named=True)], left=2)
    more_rows(table, rows, page)
    page.line("commands and the gaps between them count for the module that launched them")
    page.line()


def _operators(shown: DevicePathsShown, page: Page) -> None:
    path, rows = shown.found.path, shown.top or TOP
    table = by_op(path)
    page.table(("operator or command", "on", "on the path", "of it", "in steps"), [
        (cut(row["op"] or "(none)"), "host" if row["kind"] == "host" else "device", duration(row["time_ns"]),
         percent(row["ratio"]), str(row["steps"])) for row in table.head(rows).iter_rows(named=True)], left=2)
    more_rows(table, rows, page)
    whole = float((path.steps["end_ns"] - path.steps["start_ns"]).mean() or 0)  # type: ignore[arg-type]
    calls = [f"{row['name']} {duration(row['time_ns'])}" for row in calls_on_path(path).head(NAMED_CALLS).iter_rows(
        named=True) if row["time_ns"] >= LEAST * whole]
    if calls:
        page.line(f"runtime calls of the host on the path: {', '.join(calls)}")
    seen = lines_on_path(path)
    if (total := int(seen["samples"].sum())) >= ENOUGH_SAMPLES:
        files = short_names(seen["file"].unique().to_list())
        page.line(f"where the script was then, most of {counted(total, 'sample')}: " + ", ".join(
            cut(f"{files[row['file']]}:{row['line']} {row['function']} ({row['samples']})")
            for row in seen.head(NAMED_LINES).iter_rows(named=True)))
    page.line()


def _off(shown: DevicePathsShown, devices: pl.DataFrame, page: Page) -> None:
    """Prints what is not on the path."""
    table, rows = off_path(shown.found.path), shown.top or OFF_ROWS
    mean = devices.mean().row(0, named=True)
    if len(table):
        page.table(("not on the path", "calls/step", "takes", "least slack", "half have"), [
            (cut(row["op"]), f"{row['calls']:.3g}", duration(row["time_ns"]), time_or_none(row["slack_ns"]),
             time_or_none(row["median_slack_ns"])) for row in table.head(rows).iter_rows(named=True)])
        more_rows(table, rows, page)
        page.line("slack: how much longer, at least, each of these alone could take without lengthening a step of the "
                  "device; -: nothing in the timeline waits for it")
    page.line(f"not on the path, per step: {duration(mean['off_ns'])} of kernels, copies and fills "
              f"({mean['off_calls']:.3g}); {duration(mean['hidden_host_ns'])} of the host's work "
              f"({percent(mean['hidden_host_ns'] / max(mean['working_ns'], 1))} of it), hidden behind the device")
    page.line()


def _doubts(shown: DevicePathsShown) -> Iterator[str]:
    path = shown.found.path
    mean, kinds = by_device(path)["time_ns"].mean(), by_kind(path)
    whole = float(mean or 0)  # type: ignore[arg-type]
    if kinds["unshown"] >= DOUBTFUL * whole:
        yield ("not shown: a command began long after everything that the timeline shows it could have waited for; "
               "possible reasons are unrecorded commands, as in CUDA graphs, and other processes on the device")
    if kinds["communication"] and len(shown.found.run.ranks) > path.steps["rank"].n_unique():
        yield ("communication: includes waiting for other ranks, which this path does not follow; without --rank, "
               "distprof critical-path does")
    if shown.found.run.world_size > 1 and len(shown.found.run.ranks) == 1 and kinds["communication"]:
        yield "communication: includes waiting for other ranks, of which there are no traces"


def device_paths_data(found: DevicePaths, *, top: int | None, with_chain: bool, step_time: StepTime | None) -> (
        dict[str, Any]):
    """Returns all that is known about the chains of devices.

    Args:
        found: The chains.
        top: Number of rows of a table; None: all.
        with_chain: Whether to include every link.
        step_time: Step time of the job.
    """
    about, path = described(found.run, found.clock), found.path
    tables: Mapping[str, pl.DataFrame] = {
        "by_rank": by_device(path), "by_module": by_module(path), "by_op": by_op(path), "off_path": off_path(path),
        "calls": calls_on_path(path), "lines": lines_on_path(path)}
    steps = path.steps.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    return {**{key: about[key] for key in DESCRIBED}, "kind": "critical_path", "through": "device",
            "step_time": step_time_data(step_time), "duration_ns": steps["duration_ns"].mean(),
            "by_kind": by_kind(path), "steps": steps.sort("rank", "device", "step").to_dicts(),
            **{name: _rows(table.head(top) if top else table) for name, table in tables.items()},
            "chain": _rows(path.links) if with_chain else None}


def _rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.rename({"module_path": "module"}, strict=False).to_dicts()
