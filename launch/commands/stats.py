"""`distprof stats`: totals, steps, modules and ranks of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from distprof.errors import DataError, UsageError
from distprof.launch.options import ATTEMPT, JSON, RUNS, STRICT, given_runs, given_sizes, mesh_sizes
from distprof.reporters.tree import SORTS, TreeView, select_modules
from distprof.terminal import quoted_all, show


@click.command()
@RUNS
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Number of modules shown.  [default: 10; all with --modules]")
@click.option("--modules", is_flag=True, help="Show the modules as a tree.")
@click.option("--passes", is_flag=True, help="Show the step time of each pass, and so the cost of recording.")
@click.option("--depth", default=None, type=click.IntRange(min=0), metavar="N",
              help="With --modules, levels shown below the root.  [default: 3; all with --json]")
@click.option("--sort", default=None, type=click.Choice(list(SORTS)),
              help="With --modules, show the largest modules first: by parameters, MACs, FLOPs, forward time, "
                   "backward time or both times. path keeps the order of the model.  [default: path]")
@click.option("--peak", default=None, type=float, metavar="FLOP/S",
              help="Peak rate of each rank's device, such as 1.2e12, for MFU.  [default: the published rate]")
@mesh_sizes
@ATTEMPT
@JSON
@STRICT
def stats(runs: tuple[Path, ...], *, as_json: bool, strict: bool, top: int | None, modules: bool, passes: bool,
          depth: int | None, sort: str | None, peak: float | None, attempt: int | None,
          **sizes: int | None) -> None:
    """Show totals, steps, the slowest modules and the ranks of RUN.

    Several RUNs are run directories of one job whose hosts share no folder.
    """
    runs = given_runs(runs, attempt)
    if modules and passes:
        raise UsageError("--modules and --passes cannot be combined")
    if modules:
        default = None if as_json else 3  # programs get the whole tree
        view = TreeView(depth=default if depth is None else depth, top=top, sort=sort or "path")
        show(_by_module(runs, view, as_json=as_json, strict=strict, sizes=given_sizes(sizes)))
        return
    if depth is not None or sort is not None:
        raise UsageError(f"{'--sort' if depth is None else '--depth'} needs --modules",
                         hint=f"distprof stats --modules {quoted_all(runs)}")
    show(stats_text(*runs, as_json=as_json, strict=strict, top=top or 10, peak=peak, sizes=given_sizes(sizes),
                    passes=passes))


def stats_text(*runs: Path, as_json: bool = False, strict: bool = False, top: int = 10, peak: float | None = None,
               sizes: Mapping[str, int] | None = None, passes: bool = False) -> str:
    """Returns what `distprof stats` prints: totals, times, modules and ranks of a run.

    Args:
        *runs: A run directory, or several of one job; traces of other programs; or a merge.
        as_json: Returns the contents of `summary.json` instead of text.
        strict: Fails if data is missing.
        top: Number of modules.
        peak: Peak FLOP/s of each rank's device, instead of the published one.
        sizes: Axis of the device mesh -> size, instead of those recorded in the run.
        passes: Returns only the step times of each pass.

    Raises:
        DataError: The run cannot be read, or `passes` is set for traces of other programs.
        UsageError: `peak` is not a positive number, or the product of the sizes does not match the number of ranks.
        IncompleteError: Data is missing and `strict` is set.
    """
    from distprof.merge.text.stats import render, render_passes
    from distprof.merge.totals.run_summary import run_summary
    from distprof.reporters.page import Page

    if peak is not None and not (math.isfinite(peak) and peak > 0):
        raise UsageError(f"--peak must be a positive number of FLOP/s, not {peak}")
    summary = run_summary(runs, peak, sizes or {})
    _fail_if_incomplete(summary, strict=strict)
    if as_json:
        return json.dumps(summary, indent=1)
    if passes:
        _refuse_traces(summary["kind"], runs[0], "passes")
        return render_passes(summary, runs, Page())
    return render(summary, runs, Page(), top=top)


def _by_module(runs: Sequence[Path], view: TreeView, *, as_json: bool, strict: bool, sizes: Mapping[str, int]) -> str:
    """Returns totals and the tree of modules as text or JSON."""
    from distprof.contract.merged import SUMMARY_KEYS
    from distprof.merge.text.stats import render_modules
    from distprof.merge.totals.modules import module_dicts, module_rows
    from distprof.merge.totals.run_summary import summary_and_modules
    from distprof.reporters.page import Page
    from distprof.reporters.tree_report import TreeReport

    summary, modules = summary_and_modules(runs, sizes)
    _refuse_traces(summary["kind"], runs[0], "modules")
    assert modules is not None
    _fail_if_incomplete(summary, strict=strict)
    rows = module_rows(modules)
    if as_json:
        shown = [(line.row.group, line.row.path) for line in select_modules(rows, replace(view, collapse=False)).lines]
        totals = {key: summary[key] for key in (*SUMMARY_KEYS[:SUMMARY_KEYS.index("per_gpu")], "per_gpu", "model")}
        return json.dumps({**totals, "modules": module_dicts(modules, rows, shown)}, indent=1)
    return render_modules(summary, TreeReport(rows=rows, view=view), runs, Page())


def _fail_if_incomplete(summary: Mapping[str, Any], *, strict: bool) -> None:
    from distprof.contract.problems import Problem, from_json
    from distprof.merge.text.problems import fail_if_incomplete

    fail_if_incomplete(from_json(Problem, summary["problems"]), strict=strict)


def _refuse_traces(kind: str, run: Path, what: str) -> None:
    if kind == "traces":
        raise DataError(f"{run} has foreign traces without {what}, which distprof run records",
                        hint="use distprof merge to see them on one timeline")
