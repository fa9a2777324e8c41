"""`distprof waits` on one screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.problems import Problem
from distprof.merge.run.run_model import Run
from distprof.merge.text.communication.device_steps import show_idleness
from distprof.merge.text.communication.queues import show_queues
from distprof.merge.text.compilations import show_compilations
from distprof.merge.text.problems import show_problems
from distprof.merge.text.script_lines import cut, module_name, short_names
from distprof.merge.waits.run_waits import RunWaits
from distprof.reporters.page import Page
from distprof.terminal import quoted_all
from distprof.units import counted, duration, percent, spans

TOP = 20
LINES = 10
"""Lines of the script that are shown, if nothing else was asked for."""
LEAST_OF_STEP = 0.01
"""Smallest part of a step with which one is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsShown:
    """What is to be shown."""

    run: Run
    found: RunWaits
    """What was chosen of it."""
    table: pl.DataFrame
    """`grouped`."""
    lines: pl.DataFrame
    """`script_lines`."""
    by: Sequence[str]
    """Each once."""
    top: int | None
    queues: bool
    """They were asked for."""
    paths: Sequence[Path]
    problems: Sequence[Problem]


def render(shown: WaitsShown, page: Page) -> str:
    """The screen."""
    _head(shown, page)
    rows = shown.table.head(shown.top or TOP)
    if len(rows):
        page.line()
        _table(shown, rows, page)
    more = len(shown.table) - len(rows)
    if more > 0:
        page.line(f"{counted(more, 'more row')}: --top {len(shown.table)} shows all")
    _foot(shown, page)
    _lines(shown, page)
    show_compilations(shown.found.compilations, page, top=shown.top)
    show_queues(shown.found.queues, shown.found.ranks, page, asked=shown.queues)
    page.line()
    if not shown.found.devices.steps.is_empty():
        show_idleness(shown.found.devices, page)
    if shown.run.remarks or shown.problems:
        show_problems(shown.run.remarks, shown.problems, page)
        page.line()
    page.line(f"Next: distprof waits --by op --by module {quoted_all(shown.paths)}")
    return page.text()


def _head(shown: WaitsShown, page: Page) -> None:
    steps = sorted({*shown.found.steps["step"].to_list(), *shown.found.rows["step"].to_list()})
    of_steps = f" x {counted(len(steps), 'step')} ({spans(steps)})" if steps else ""
    where = f"{counted(len(shown.found.ranks), 'rank')}{of_steps}"
    blocked, total = int(shown.found.rows["blocked_ns"].sum()), int(shown.found.steps["duration_ns"].sum())
    recorded = shown.run.kind == "distprof"
    if shown.found.source is None:
        remedy = "; record lines with --steps sync=2" if recorded else ""
        page.line(f"{where}: neither waiting lines nor a timeline were recorded{remedy}")
    elif shown.found.rows.is_empty():
        page.line(f"{where}: no waits")
    else:
        share = f", {percent(_of_steps(shown.found.rows) / total)} of these steps" if total else ""
        page.line(f"{where}: {duration(blocked)} blocked{share}")
    if shown.found.source == "timeline":
        remedy = "; record a run with lines using --steps sync=2" if recorded else ""
        page.line(f"from timelines, without lines of the script{remedy}")


def _lines(shown: WaitsShown, page: Page) -> None:
    """Where ranks spend their time outside of waits."""
    rows = shown.lines.filter(pl.col("ratio") >= LEAST_OF_STEP).head(shown.top or LINES)
    if rows.is_empty():
        return
    files = short_names(rows["file"].unique().to_list())
    several = len(shown.found.ranks) > 1
    page.line()
    page.table(["line of the script", "per step", "of steps", *(["slowest rank"] if several else [])], [
        [cut(f"{files[row['file']]}:{row['line']} {row['function']}"), duration(row["mean_ns"]), percent(row["ratio"]),
         *([f"{row['most_rank']} ({duration(row['most_ns'])})"] if several else [])]
        for row in rows.iter_rows(named=True)])
    page.line("from samples in the trace and arrivals passes, excluding waits for communication; mean over ranks")


def _of_steps(rows: pl.DataFrame) -> int:
    return int(rows.filter(pl.col("thread").fill_null("steps") == "steps")["blocked_ns"].sum())


def _foot(shown: WaitsShown, page: Page) -> None:
    idle = int(shown.found.rows.filter(~pl.col("blocking"))["calls"].sum())
    if idle:
        page.line()
        page.line("-: no wait here, because the tensors are on the host; on a device the host would wait "
                  f"({counted(idle, 'call')})")


def _table(shown: WaitsShown, rows: pl.DataFrame, page: Page) -> None:
    files = short_names(rows["file"].drop_nulls().unique().to_list())
    by = [one for one in shown.by if one != "line" or files or len(shown.by) == 1]
    several = len(shown.found.ranks) > 1 and "rank" not in by
    with_share = rows["step_ratio"].null_count() < len(rows)
    header = [*by, "calls", "blocked", *(["of steps"] if with_share else []), "mean", "longest",
              *(["slowest rank"] if several else [])]
    cells = [[*(_key(one, row, files) for one in by), str(row["calls"]), *_times(row, with_share=with_share),
              *([_slowest(row)] if several else [])] for row in rows.iter_rows(named=True)]
    page.table(header, cells, left=len(by))


def _times(row: Mapping[str, Any], *, with_share: bool) -> list[str]:
    if not row["blocking_calls"]:
        return ["-"] * (3 + with_share)
    share = [percent(row["step_ratio"])] if with_share else []
    return [duration(row["blocked_ns"]), *share, duration(row["mean_ns"]), duration(row["longest_ns"])]


def _slowest(row: Mapping[str, Any]) -> str:
    return "-" if row["slowest_rank"] is None else f"{row['slowest_rank']} ({duration(row['slowest_ns'])})"


def _key(by: str, row: Mapping[str, Any], files: Mapping[str, str]) -> str:
    if by == "line":
        return "-" if row["file"] is None else cut(f"{files[row['file']]}:{row['line']} {row['function']}")
    if by == "op":
        inside = "" if row["library_call"] is None else f" in {row['library_call']}"
        return cut(f"{row['op'] or 'several'}{inside}")
    value = row[{"for": "waits_for", "module": "module_path"}.get(by, by)]
    return module_name(None if value is None else str(value))
