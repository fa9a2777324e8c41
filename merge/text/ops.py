"""Shows `distprof ops` on one screen, as a Markdown table, and as data for `--json` (keys: docs/operators.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.paths import FORMAT
from distprof.contract.problems import Problem
from distprof.merge.blame.culprits import SURE
from distprof.merge.operators.counted_work import Coverage
from distprof.merge.operators.grouping import NUMBERS
from distprof.merge.operators.run_operators import RunOperators
from distprof.merge.operators.shapes import ShapeCoverage
from distprof.merge.operators.sums import BY, KEYS
from distprof.merge.operators.timeline.rank_timeline import COPIES
from distprof.merge.run.run_model import Run
from distprof.merge.text.phrases import LONGEST, chance_words, cut
from distprof.merge.text.problems import show_problems
from distprof.reporters.page import Page
from distprof.terminal import Shown, quoted_all, visible
from distprof.units import counted, duration, percent, si, size, spans

TOP = 20
LONGEST_STACK = 120
"""Maximum length of a stack in characters."""
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "calls": ("calls", str), "self_host_ns": ("self host", duration), "host_ns": ("host", duration),
    "self_device_ns": ("self device", duration), "device_ns": ("device", duration), "share": ("share", percent),
    "mean_ns": ("mean", duration), "max_ns": ("max", duration), "flops": ("FLOPs", si),
    "bytes": ("bytes", size), "bytes_per_second": ("bytes/s", lambda value: si(value, "B/s")),
    "flops_per_second": ("FLOP/s", si), "flops_per_byte": ("FLOP/B", si), "roofline_ratio": ("of roofline", percent),
    "self_allocated_bytes": ("self allocated", size), "self_freed_bytes": ("self freed", size),
    "bound": ("bound by", lambda text: text or "-")}
"""Column -> title and how a value is written."""
OF_COPIES = ("bytes", "bytes_per_second")
"""Columns that are shown only if all rows are copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorsShown:
    """What the screen shows."""

    run: Run
    found: RunOperators
    table: pl.DataFrame
    """`grouped_sums` of what was found."""
    by: Sequence[str]
    """Names of `BY`, each once."""
    top: int | None
    paths: Sequence[Path]
    captured: Sequence[Path]
    problems: Sequence[Problem]


def render(shown: OperatorsShown, page: Page, *, markdown: bool = False) -> str:
    """Returns the screen, or only the table as Markdown."""
    header, rows = _table(shown)
    left = len(shown.by)
    if markdown:
        return Shown.drawn("\n".join(f"| {' | '.join(map(_cell, row))} |" for row in (
            header, [*["---"] * left, *["---:"] * (len(header) - left)], *rows)))
    _head(shown, page)
    if rows:
        page.table(header, rows, left=left)
    else:
        any_at_all = any(share.num_rows for share in shown.found.shares)
        page.line("no operator matches all filters" if any_at_all else
                  "no slice in the timelines has the category of an operator, runtime call or kernel")
    more = len(shown.table) - len(rows)
    if more > 0:
        page.line(f"{counted(more, 'more row')}: --top {len(shown.table)} shows all")
    page.line()
    if shown.run.remarks or shown.problems:
        show_problems(shown.run.remarks, shown.problems, page)
        page.line()
    page.line(f"Next: distprof ops --by op --by shape --by module {quoted_all(shown.paths)}")
    return page.text()


def _head(shown: OperatorsShown, page: Page) -> None:
    steps, ranks, groups = shown.found.sums.steps, shown.found.sums.ranks, shown.found.sums.groups
    of_steps = f" x {counted(len(steps), 'step')} ({spans(steps)})" if steps else ""
    on_host, on_device = (int(groups[name].sum()) for name in ("self_host_ns", "self_device_ns"))
    on_devices = f", {duration(on_device)} on devices" if on_device else ""
    of = f"{len(ranks)} of {counted(len(shown.run.ranks), 'rank')}" if shown.run.light_ranks else counted(
        len(ranks), "rank")
    page.line(f"sums over {of}{of_steps}: self time {duration(on_host)} on hosts{on_devices}")
    covered, by_shapes = shown.found.coverage, shown.found.by_shapes
    if by_shapes is not None:
        _by_shapes(by_shapes, covered, page)
    elif covered is None:
        page.line("FLOPs and bytes are unknown: there is no count pass, and the trace has no shapes")
    elif covered.ratio is not None:
        page.line(f"FLOPs and bytes come from the count pass; timed calls cover {percent(covered.ratio)} of its FLOPs")
    replays = shown.found.replays
    if replays.found:
        page.line(f"the capture of {replays.found} of {counted(replays.launched, 'replay of a graph')} is known: their "
                  "kernels belong to the captured operators, which take no time on hosts")
    elif shown.captured:
        number = counted(replays.launched, "replay of a graph")
        page.line(f"no capture fits the {number}: other kernels, or another order" if replays.launched else
                  "no graph is replayed")
    if shown.found.num_bad:
        page.line(f"{counted(shown.found.num_bad, 'slice')} without usable times skipped")
    if shown.found.num_stepless:
        page.line(f"not counted: {counted(shown.found.num_stepless, 'device command')} "
                  f"({duration(shown.found.stepless_ns)}) outside all steps, or whose launch is not in the trace")
    page.line()


def _by_shapes(covered: ShapeCoverage, counts: Coverage | None, page: Page) -> None:
    told = "" if covered.ratio is None else f", which give FLOPs for {percent(covered.ratio)} of operator time"
    page.line(f"FLOPs and bytes come from the shapes in the trace{told}")
    if counts is not None and counts.ratio is not None:
        page.line(f"not from the count pass: only {percent(counts.ratio)} of its FLOPs come from operators and "
                  "shapes that were timed (torch.compile calls other operators; batches may differ)")
    if covered.unknown_calls:
        without = f", {covered.calls_without_shapes} without shapes" if covered.calls_without_shapes else ""
        page.line(f"FLOPs of {counted(covered.unknown_calls, 'call')} are unknown{without}")


def _table(shown: OperatorsShown) -> tuple[list[str], list[list[str]]]:
    table = shown.table.head(shown.top or TOP)
    keys = [BY[one] for one in shown.by]
    of_copies = set(table["type"].to_list()) <= {*COPIES}
    columns = [name for name in COLUMNS if table[name].null_count() < len(table) and not _is_nothing(name, table)
               and (name not in OF_COPIES or of_copies) and not (of_copies and name.startswith("flops"))]
    header = [*shown.by, *(COLUMNS[name][0] for name in columns)]
    several = len(shown.found.sums.ranks) > 1 and "rank" not in keys
    rows = [[*(_key(key, row[key]) for key in keys), *(COLUMNS[name][1](row[name]) for name in columns),
             *([_slowest(row)] if several else [])] for row in table.iter_rows(named=True)]
    return [*header, *(["slowest rank"] if several else [])], rows


def _is_nothing(name: str, table: pl.DataFrame) -> bool:
    return "device" in name and not table[name].sum()


def _cell(text: str) -> str:
    return visible(text).replace("|", "\\|")


def _key(key: str, value: object) -> str:
    text = "-" if value is None else "(root)" if value == "" else str(value)
    return cut(text, LONGEST_STACK if key == "stack" else LONGEST)


def _slowest(row: dict[str, Any]) -> str:
    """Returns the slowest rank, unless that may be chance."""
    if row["slowest_rank"] is None:
        return "-"
    chance = row["slowest_p_value"]
    rank = row["slowest_rank"] if chance is None or chance <= SURE else "-"
    parts = [] if row["slowest_ratio"] is None else [f"{row['slowest_ratio']:.2f} x median"]
    parts += [chance_words(chance)] if chance is not None and chance <= SURE else []
    return f"{rank} ({', '.join(parts)})" if parts else f"{rank}"


def ops_data(run: Run, found: RunOperators, table: pl.DataFrame) -> dict[str, Any]:
    """Returns the data of the command.

    Args:
        run: The run.
        found: Its selected operators.
        table: `grouped_sums` of these, cut to the shown rows.
    """
    chosen = found.sums.groups
    totals = {name: int(chosen[name].sum()) for name in ("calls", "self_host_ns", "self_device_ns")}
    return {
        "format": FORMAT, "kind": "ops", "ranks": list(found.ranks), "world_size": run.world_size,
        "steps": found.sums.steps,
        "coverage": _coverage(found),
        "totals": {**totals, **{name: None if chosen[name].is_null().all() else int(chosen[name].sum())
                                for name in ("flops", "bytes")}},
        "graphs": {"replays": found.replays.launched, "with_capture": found.replays.found},
        "left_out": {"slices_without_duration": found.num_bad, "commands_in_no_step": found.num_stepless,
                     "in_no_step_ns": found.stepless_ns},
        "ops": table.select(pl.col("module_path").alias("module"), pl.col("class_name").alias("class"),
                            *(name for name in (*KEYS, *NUMBERS, "bound") if name not in ("module_path", "class_name"))
                            ).to_dicts()}


def _coverage(found: RunOperators) -> dict[str, Any] | None:
    """Returns where FLOPs come from, and how much they cover."""
    covered, by_shapes = found.coverage, found.by_shapes
    if by_shapes is not None:
        return {"source": "shapes", "time_ratio": by_shapes.ratio, "unknown_calls": by_shapes.unknown_calls,
                "calls_without_shapes": by_shapes.calls_without_shapes}
    return None if covered is None else {
        "source": "count pass", "flops_ratio": covered.ratio, "flops": covered.flops,
        "counted_flops": covered.counted_flops, "calls": covered.calls, "counted_calls": covered.counted_calls}
