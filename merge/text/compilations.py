"""The part of `distprof waits` about torch.compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from distprof.merge.text.script_lines import cut, module_name, short_names
from distprof.merge.waits.compilations import compilation_totals, grouped_compilations
from distprof.reporters.page import Page
from distprof.units import counted, duration, spans

TOP = 12
LONGEST = 80
"""Characters of a reason."""
RESUMED = "torch_dynamo_resume_in_"
"""Begins torch's names of what follows a graph break in a function."""


def show_compilations(compilations: pl.DataFrame, page: Page, *, top: int | None) -> None:
    """What was compiled in the whole job, a row for what is alike; nothing where nothing was."""
    if compilations.is_empty():
        return
    page.line()
    page.line(_head(compilations))
    table, is_break = grouped_compilations(compilations), pl.col("event") == "graph_break"
    several = ["slowest rank"] if compilations["rank"].n_unique() > 1 else []
    _table(table.filter(~is_break), ["torch.compile", "line"], ["took", "longest", *several], page, top=top or TOP)
    _table(table.filter(is_break), ["graph break"], [], page, top=top or TOP)


def _table(table: pl.DataFrame, first: Sequence[str], last: Sequence[str], page: Page, *, top: int) -> None:
    if table.is_empty():
        return
    rows, header = table.head(top), [*first, "module", "reason", "times", "steps", *last]
    files = short_names(rows["file"].drop_nulls().unique().to_list())
    cells = [_cells(row, files) for row in rows.iter_rows(named=True)]
    page.line()
    page.table(header, [[one[name] for name in header] for one in cells], left=len(first) + 2)
    if len(table) > len(rows):
        page.line(f"{counted(len(table) - len(rows), 'more row')}: --top {len(table)} shows all")


def _head(compilations: pl.DataFrame) -> str:
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
    """`forward` behind line 29, in place of torch_dynamo_resume_in_forward_at_29."""
    return f"{name.removeprefix(RESUMED).rpartition('_at_')[0]} (rest)" if name.startswith(RESUMED) else name


def _reason(reasons: Sequence[str], failed: int) -> str:
    if not reasons:
        return "failed" if failed else "-"
    first, _, behind = reasons[0].partition("\n")
    if "Explanation: " in behind:  # of a graph break, which says more than its title
        first = behind.partition("Explanation: ")[2].partition("\n")[0]
    more = f" (+{len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{'failed: ' if failed else ''}{cut(first, LONGEST)}{more}"
