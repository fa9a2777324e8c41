"""Shows `distprof ops --counters` on one screen, and as data for `--json` (docs/operators.md has its keys)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path

from distprof.contract.paths import FORMAT
from distprof.merge.operators.counters import RunCounters, run_counters
from distprof.merge.operators.merged_operators import run_of_merge
from distprof.merge.run.open_run import open_run
from distprof.merge.text.phrases import cut
from distprof.merge.text.problems import fail_if_incomplete, show_problems
from distprof.reporters.page import Page
from distprof.units import UNKNOWN, counted, si

TOP = 20


def counters_text(*runs: Path, ranks: Sequence[int], top: int | None, as_json: bool, strict: bool) -> str:
    """Returns CUPTI counters by operator and kernel, as text or JSON.

    Args:
        *runs: A run directory, or several of one job; traces of other programs; or a merge of them.
        ranks: Only these ranks; empty: all.
        top: Number of rows; None: all in JSON, and `TOP` in text.
        as_json: Whether to return JSON.
        strict: Whether to fail if something is missing.

    Raises:
        DataError: The run cannot be read, or has no counters.
        IncompleteError: Something is missing and `strict` is set.
    """
    run = open_run(*run_of_merge(*runs).paths)
    found = run_counters(run, ranks)
    problems = [*run.problems, *found.problems]
    fail_if_incomplete(problems, strict=strict)
    if as_json:
        return json.dumps({
            "format": FORMAT, "kind": "counters", "ranks": list(found.ranks), "world_size": run.world_size,
            "ranks_without_operators": list(found.unmatched), "counters": [{
                "launched_by": row.launched_by, "kernel": row.name, "kernels": row.kernels, "flops": row.flops,
                **row.counters} for row in found.rows[:top]]}, indent=1)
    page = Page()
    _table(found, top or TOP, page)
    if run.remarks or problems:
        page.line()
        show_problems(run.remarks, problems, page)
    return page.text()


def _table(found: RunCounters, top: int, page: Page) -> None:
    kernels, (before, behind) = sum(row.kernels for row in found.rows), _alike(found.names)
    page.line(f"counters of {counted(kernels, 'kernel')} of {counted(len(found.ranks), 'rank')}; amounts are summed, "
              "others are means")
    if before or behind:
        page.line(f"names are short for {before}*{behind}")
    if found.unmatched:
        page.line("operators are unknown where the numbers of kernels and launches differ")
    page.line()
    has_flops = any(row.flops is not None for row in found.rows)
    page.table(
        ["launched by", "kernel", "kernels", *(["FLOPs"] if has_flops else []),
         *(name[len(before):len(name) - len(behind)] for name in found.names)],
        [[cut(row.launched_by or UNKNOWN), cut(row.name), str(row.kernels), *([si(row.flops)] if has_flops else []),
          *(si(row.counters[name]) for name in found.names)] for row in found.rows[:top]], left=2)
    if len(found.rows) > top:
        page.line(f"{counted(len(found.rows) - top, 'more row')}: --top {len(found.rows)} shows all")


def _alike(names: Sequence[str]) -> tuple[str, str]:
    """Returns the common beginning and end of all names, cut to whole words."""
    if len(names) < 2:
        return "", ""
    before = commonprefix(names)  # noqa: RUF071 (they are no paths)
    before = before[:before.rfind("_") + 1]
    behind = commonprefix([name[len(before):][::-1] for name in names])[::-1]  # noqa: RUF071
    places = [behind.find(mark) for mark in "_." if mark in behind]
    return before, behind[min(places):] if places else ""
