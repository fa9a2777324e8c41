"""Shows `distprof waits` on one screen, with torch.compile and device queues, and makes its data for `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.paths import FORMAT
from distprof.contract.problems import Problem
from distprof.merge.run.run_model import Run
from distprof.merge.text.communication.device_steps import devices_data, show_idleness
from distprof.merge.text.phrases import cut, module_name, rank_list, short_names
from distprof.merge.text.problems import show_problems
from distprof.merge.waits.queues import FULL, summed_queues
from distprof.merge.waits.run_waits import RunWaits
from distprof.merge.waits.traced_waits import compilation_totals, grouped_compilations
from distprof.reporters.page import Page
from distprof.terminal import quoted_all
from distprof.units import counted, duration, percent, spans

TOP = 20
LINES = 10
"""Number of lines of the script that are shown by default."""
LEAST_OF_STEP = 0.01
"""Lines of the script are shown from this share of a step on."""
MOST_COMPILED = 12
LONGEST_REASON = 80
"""Maximum length of a reason in characters."""
RESUMED = "torch_dynamo_resume_in_"
"""Prefix of torch's names for the rest of a function after a graph break."""
HEADER = ("rank", "commands", "short", "mean delay", "longest", "mean depth", "deepest")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsShown:
    """What the screen shows."""

    run: Run
    found: RunWaits
    """The selected waits."""
    table: pl.DataFrame
    """`grouped` waits."""
    lines: pl.DataFrame
    """Result of `script_lines`."""
    by: Sequence[str]
    """Keys to group by, each once."""
    top: int | None
    queues: bool
    """Whether queues were requested."""
    paths: Sequence[Path]
    problems: Sequence[Problem]


def render(shown: WaitsShown, page: Page) -> str:
    """Returns the screen as text."""
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
    """Prints where ranks spend their time outside of waits."""
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


def show_compilations(compilations: pl.DataFrame, page: Page, *, top: int | None) -> None:
    """Prints what was compiled in the whole job, with a row for similar compilations; or nothing."""
    if compilations.is_empty():
        return
    page.line()
    page.line(_compiled(compilations))
    table, is_break = grouped_compilations(compilations), pl.col("event") == "graph_break"
    several = ["slowest rank"] if compilations["rank"].n_unique() > 1 else []
    _table_of_compiled(table.filter(~is_break), ["torch.compile", "line"], ["took", "longest", *several], page,
                       top=top or MOST_COMPILED)
    _table_of_compiled(table.filter(is_break), ["graph break"], [], page, top=top or MOST_COMPILED)


def _table_of_compiled(table: pl.DataFrame, first: Sequence[str], last: Sequence[str], page: Page, *, top: int) -> None:
    if table.is_empty():
        return
    rows, header = table.head(top), [*first, "module", "reason", "times", "steps", *last]
    files = short_names(rows["file"].drop_nulls().unique().to_list())
    cells = [_cells(row, files) for row in rows.iter_rows(named=True)]
    page.line()
    page.table(header, [[one[name] for name in header] for one in cells], left=len(first) + 2)
    if len(table) > len(rows):
        page.line(f"{counted(len(table) - len(rows), 'more row')}: --top {len(table)} shows all")


def _compiled(compilations: pl.DataFrame) -> str:
    totals = compilation_totals(compilations)
    done = totals["compile"] + totals["recompile"] + totals["backward"]
    parts = [counted(done, "compilation"), f"{totals['recompile']} of them recompilations after guard failures",
             counted(totals["graph_break"], "graph break")]
    if totals["failed"]:
        parts.append(f"{totals['failed']} failed")
    return (f"torch.compile in the whole job, {counted(compilations['rank'].n_unique(), 'rank')}: {', '.join(parts)}; "
            f"{duration(totals['duration_ns'])} blocked")


def _cells(row: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, str]:
    line = "-" if row["file"] is None else f"{files[row['file']]}:{row['line']} {_function(row['function'] or '')}"
    slowest = "-" if row["slowest_rank"] is None else f"{row['slowest_rank']} ({duration(row['slowest_ns'])})"
    return {"torch.compile": row["event"], "line": cut(line), "graph break": cut(line),
            "module": module_name(row["module_path"]), "reason": _reason(row["reasons"], row["failed"]),
            "times": str(row["times"]), "steps": spans(row["steps"]) or "-", "took": duration(row["duration_ns"]),
            "longest": duration(row["longest_ns"]), "slowest rank": slowest}


def _function(name: str) -> str:
    """Returns `forward (rest)` for torch_dynamo_resume_in_forward_at_29."""
    return f"{name.removeprefix(RESUMED).rpartition('_at_')[0]} (rest)" if name.startswith(RESUMED) else name


def _reason(reasons: Sequence[str], failed: int) -> str:
    if not reasons:
        return "failed" if failed else "-"
    first, _, behind = reasons[0].partition("\n")
    if "Explanation: " in behind:  # the explanation of a graph break says more than its title
        first = behind.partition("Explanation: ")[2].partition("\n")[0]
    more = f" (+{len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{'failed: ' if failed else ''}{cut(first, LONGEST_REASON)}{more}"


def show_queues(queues: pl.DataFrame | None, ranks: Sequence[int], page: Page, *, asked: bool) -> None:
    """Prints a row for each rank with a device.

    Args:
        queues: `QUEUE` of the shown steps; None if there are no timelines.
        ranks: The shown ranks.
        page: Where to print.
        asked: Whether to say so if there is nothing to show.
    """
    found = pl.DataFrame() if queues is None else summed_queues(queues)
    if found.is_empty():
        if asked:
            page.line()
            page.line("device queues: no timeline shows them (record one with --steps trace=6)"
                      if queues is None else f"device queues: {rank_list(ranks)} without a device: operators run when "
                                             "they are called, so nothing is queued")
        return
    page.line()
    page.line("device queues: from the end of the call that launches a command until the command starts")
    page.line()
    page.table(HEADER, [
        [str(row["rank"]), str(row["commands"]), percent(row["short"] / row["commands"] if row["commands"] else None),
         duration(row["mean_delay_ns"]), duration(row["longest_ns"]),
         f"{row['mean_depth'] or 0:.1f}", str(row["deepest"])]
        for row in found.iter_rows(named=True)])
    page.line("short: commands that run for less time than the call that launches them takes (the profiler slows down "
              "that call); these alone cannot keep a device busy")
    for row in found.filter(pl.col("full_ns") > 0).iter_rows(named=True):
        page.line(f"rank {row['rank']}: streams had {FULL:,} commands in their queue for {duration(row['full_ns'])} in "
                  "all: the queue was full, and a call that launches another command has to wait")
    unsent = int(found["unsent"].sum())
    if unsent:
        page.line(f"not counted: {counted(unsent, 'command')} whose launch is unknown")


def waits_data(world_size: int, found: RunWaits, table: pl.DataFrame, lines: pl.DataFrame, top: int | None) -> (
        dict[str, Any]):
    """Returns the data of the command.

    Args:
        world_size: Number of ranks of the job.
        found: The selected waits.
        table: `grouped` waits, cut to the shown rows.
        lines: Result of `script_lines`.
        top: Number of rows of compilations; None: all.
    """
    rows, steps = found.rows, found.steps
    return {
        "format": FORMAT, "kind": "waits", "source": found.source, "ranks": list(found.ranks), "world_size": world_size,
        "steps": sorted({*steps["step"].to_list(), *rows["step"].to_list()}),
        "totals": {"calls": int(rows["calls"].sum()), "blocked_ns": int(rows["blocked_ns"].sum()),
                   "blocking_calls": int(rows.filter("blocking")["calls"].sum()),
                   "steps_ns": int(steps["duration_ns"].sum()) if len(steps) else None},
        "waits": _named(table), "lines": lines.to_dicts(), "compilations": _compiled_data(found.compilations, top),
        "queues": None if found.queues is None else summed_queues(found.queues).to_dicts(),
        "devices": devices_data(found.devices)}


def _compiled_data(rows: pl.DataFrame, top: int | None) -> dict[str, Any]:
    """Returns totals, and a row for similar compilations."""
    table = grouped_compilations(rows)
    return {"totals": compilation_totals(rows), "rows": _named(table.head(top) if top else table)}


def _named(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.rename({"module_path": "module"}).to_dicts()
