"""Shows `distprof critical-path` on one screen and as data (docs/critical-path.md), and what `whatif` shows as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.problems import Problem, Remark
from distprof.merge.clock.choose import runs_as_told
from distprof.merge.clock.model import Clock
from distprof.merge.critical.critical_path import UNRECORDED, CriticalPath
from distprof.merge.critical.grouping import by_collective, by_kind, by_module, by_op, by_rank, slack_by_rank
from distprof.merge.critical.replayable import Replayable
from distprof.merge.run.run_model import Run
from distprof.merge.text.phrases import clock_line, cut, rank_list, step_time_words
from distprof.merge.text.problems import sentence, show_problems
from distprof.merge.totals.description import described
from distprof.merge.totals.step_time import StepTime, step_time, step_time_data
from distprof.reporters.page import Page
from distprof.units import UNKNOWN, counted, duration, percent, spans

TOP = 15
SLOWED = 1.1
"""If the path is at least this many times the step time, the reason is printed."""
DESCRIBED = ("format", "run_id", "world_size", "ranks", "missing_ranks", "problems", "remarks", "clock")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedShown:
    """What the screens of replays have in common."""

    run: Run
    clock: Clock
    top: int | None
    """Number of rows of a table, if given."""
    guessed: Sequence[int]
    """Ranks with many waits that are only inferred from other ranks."""
    problems: Sequence[Problem]
    paths: Sequence[Path]
    step_time: StepTime | None
    """Step time of the job."""
    on_device: bool = False
    """Whether ranks used a device; a device and its host count as one chain of work."""


def first_line(shown: ReplayedShown, steps: Sequence[int]) -> str:
    """Returns the numbers of ranks and steps."""
    return f"{counted(len(shown.run.ranks), 'rank')}, {counted(len(steps), 'step')} ({spans(steps)})"


def doubts(shown: ReplayedShown, *, so: str = "") -> Iterator[str]:
    """Yields what a replay may mistake for something else.

    Args:
        shown: The run.
        so: What follows for work that may be waiting.
    """
    missing = shown.run.missing
    if missing:
        yield (f"what {rank_list(missing)} did is unknown: time that others waited for "
               f"{'it' if len(missing) == 1 else 'them'} counts as moving")
    if shown.on_device:
        yield ("a device and its host count as one chain of work: a kernel that runs while the host is late is on the "
               "path, though with a shorter kernel the step may take as long; `distprof critical-path --rank N` tells "
               "them apart on one rank")
    if shown.guessed:
        yield (f"many waits of {rank_list(shown.guessed)} are inferred from other ranks: some of the work there may be "
               f"waiting{so}")


def last_lines(shown: ReplayedShown, page: Page) -> None:
    """Prints problems of the run, and its clock."""
    show_problems(shown.run.remarks, shown.problems, page)
    page.line(clock_line(shown.clock.to_json()))
    page.line()


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalShown(ReplayedShown):
    """What the screen of a critical path shows."""

    path: CriticalPath
    rows: pl.DataFrame
    """Rows of `MERGED_COLLECTIVES`."""
    remarks: Sequence[Remark]


def render(shown: CriticalShown, page: Page) -> str:
    """Returns the screen as text."""
    path = shown.path
    page.line("; ".join([first_line(shown, path.steps), *map(sentence, shown.remarks)]))
    if shown.step_time is not None:
        page.line(f"step {step_time_words(shown.step_time)}")
    page.line(_head(path))
    if (line := slowed(shown)) is not None:
        page.line(line)
    page.line()
    _ranks(shown, page)
    _modules(shown, page)
    _operators(shown, page)
    _collectives(shown, page)
    for line in _doubts(shown):
        page.line(line)
    last_lines(shown, page)
    where = runs_as_told(shown.paths)
    page.line(f"Next: distprof merge --force --critical-path {where}")
    if len(path.steps) > 1:
        slowest = path.durations.sort(pl.col("end_ns") - pl.col("start_ns"))["step"].to_list()[-1]
        page.line(f"      distprof critical-path --step {slowest} {where}")
    return page.text()


def _head(path: CriticalPath) -> str:
    each = (path.durations["end_ns"] - path.durations["start_ns"]).to_numpy()
    most = "" if len(path.steps) == 1 else f" ({duration(each.min())} to {duration(each.max())})"
    kinds = {kind: ns for kind, ns in by_kind(path).items() if ns or kind != UNRECORDED}
    return (f"critical path: {duration(each.mean())}{most} from the first rank's start to the last one's end: "
            + ", ".join(f"{duration(ns)} {kind}" for kind, ns in kinds.items()))


def slowed(shown: CriticalShown) -> str | None:
    """Returns why the path is longer than the step time, if it is: it covers steps with a timeline."""
    each, usual = (shown.path.durations["end_ns"] - shown.path.durations["start_ns"]).mean(), shown.step_time
    if usual is None or not usual.is_light or not isinstance(each, float) or each < SLOWED * usual.time_ns:
        return None
    return "these steps ran with the profiler, which slows the host: the path is longer than the step time"


def _ranks(shown: CriticalShown, page: Page) -> None:
    table, rows = by_rank(shown.path), shown.top or TOP
    page.table(("rank", "on the path", "of it", "in steps", "work", "moving", "starting", "waking"), [
        (f"rank {row['rank']}", duration(row["time_ns"]), percent(row["ratio"]), str(row["steps"]),
         *(time_or_none(row[f"{kind}_ns"]) for kind in ("work", "moving", "starting", "waking")))
        for row in table.head(rows).iter_rows(named=True)])
    more_rows(table, rows, page)
    page.line("mean per step; moving: a collective, once all the ranks it needs have arrived; starting: from its "
              "call, or from when its queue was")
    page.line("free, until it started; waking: from its end until the thread continued")
    page.line()


def _modules(shown: CriticalShown, page: Page) -> None:
    table, rows = by_module(shown.path), shown.top or TOP
    page.table(("module", "phase", "on the path", "of it", "in steps", "mostly on", "least slack", "most slack"), [
        (place(row), row["phase"], duration(row["time_ns"]), percent(row["ratio"]), str(row["steps"]), mostly_on(row),
         _slack(row, "slack"), _slack(row, "most_slack")) for row in table.head(rows).iter_rows(named=True)], left=2)
    more_rows(table, rows, page)
    page.line("slack: how much longer each call on that rank could take without making any step longer")
    page.line()


def _operators(shown: CriticalShown, page: Page) -> None:
    table, rows = by_op(shown.path), shown.top or TOP
    if table["op"].null_count() == len(table):
        return
    page.table(("operator", "on the path", "of it", "in steps", "mostly on"), [
        (cut(row["op"] or "(none)"), duration(row["time_ns"]), percent(row["ratio"]), str(row["steps"]), mostly_on(row))
        for row in table.head(rows).iter_rows(named=True)])
    more_rows(table, rows, page)
    page.line()


def _collectives(shown: CriticalShown, page: Page) -> None:
    table, rows = by_collective(shown.path, shown.rows), shown.top or TOP
    if table.is_empty():
        page.line("no collective is on the path")
        page.line()
        return
    page.table(("collective", "group", "calls/step", "on the path", "of it", "moving", "starting", "waking"), [
        (row["collective_op"] or UNKNOWN, row["group"] or UNKNOWN, f"{row['calls']:.3g}", duration(row["time_ns"]),
         percent(row["ratio"]), *(time_or_none(row[f"{kind}_ns"]) for kind in ("moving", "starting", "waking")))
        for row in table.head(rows).iter_rows(named=True)], left=2)
    more_rows(table, rows, page)
    page.line()


def _doubts(shown: CriticalShown) -> list[str]:
    found = []
    work = shown.path.links.filter(pl.col("kind") == "work")
    if len(work) and (work["phase"] == "unknown").all():
        found.append("modules are unknown: " + ("the traces mark none" if shown.run.kind == "traces" else
                                                "these steps have no timeline"))
    found += doubts(shown)
    off = shown.clock.pair_uncertainty_ns()
    if off:
        found.append(f"clocks may differ by {duration(off)}: where the path changes ranks, it may be wrong by that "
                     "much")
    return found


def more_rows(table: pl.DataFrame, rows: int, page: Page) -> None:
    if len(table) > rows:
        page.line(f"{counted(len(table) - rows, 'more row')}: --top {len(table)} shows all")


def place(row: Mapping[str, Any]) -> str:
    where = row["module_path"]
    return UNKNOWN if where is None else "(root)" if where == "" else cut(where)


def mostly_on(row: Mapping[str, Any]) -> str:
    return f"rank {row['rank']} ({percent(row['rank_ratio'])})"


def _slack(row: Mapping[str, Any], which: str) -> str:
    ns = row[f"{which}_ns"]
    return UNKNOWN if ns is None else f"{duration(ns)} (rank {row[f'{which}_rank']})"


def time_or_none(ns: float | None) -> str:
    return duration(ns) if ns else UNKNOWN


def critical_data(found: Replayable, path: CriticalPath, *, top: int | None, with_chain: bool) -> dict[str, Any]:
    """Returns all that is known about the critical paths.

    Args:
        found: The run.
        path: Its critical paths.
        top: Number of rows of a table; None: all.
        with_chain: Whether to include every link.
    """
    about = described(found.run, found.clock)
    durations = path.durations.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    ns = (pl.col("end_ns") - pl.col("start_ns")).alias("time_ns")
    ranks = path.links.group_by("step", "rank").agg(ns.sum()).sort("step", "time_ns", descending=[False, True])
    each = {step: ranks.filter(pl.col("step") == step).select("rank", "time_ns").to_dicts() for step in path.steps}
    tables = {"by_rank": by_rank(path), "by_module": by_module(path), "by_op": by_op(path),
              "by_collective": by_collective(path, found.program.rows), "slack": slack_by_rank(path)}
    return {
        **{key: about[key] for key in DESCRIBED}, "kind": "critical_path",
        "pair_uncertainty_ns": found.clock.pair_uncertainty_ns(), "ranks_with_guessed_waits": found.guessed,
        "step_time": step_time_data(step_time(found.recorded)),
        "duration_ns": durations["duration_ns"].mean(), "by_kind": by_kind(path),
        "steps": [{**row, "by_rank": each[row["step"]]} for row in durations.iter_rows(named=True)],
        **{name: _named(table.head(top) if top else table) for name, table in tables.items()},
        "chain": _named(path.links) if with_chain else None}


def _named(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.rename({"module_path": "module"}, strict=False).to_dicts()
