"""Makes the text of `distprof ops`, with `--torch` too."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from distprof.contract.problems import Problem
from distprof.errors import DataError, UsageError
from distprof.merge.commands.incomplete import fail_if_incomplete
from distprof.merge.commands.table_files import as_csv, check_new, write_parquet
from distprof.merge.operators.grouping import columns_of, grouped_sums
from distprof.merge.operators.merged_operators import run_of_merge
from distprof.merge.operators.rank_share import Asked
from distprof.merge.operators.run_operators import run_operators
from distprof.merge.operators.selection import Selection, check, check_words
from distprof.merge.run.open_run import open_run
from distprof.merge.run.timelines import with_timelines
from distprof.merge.text.ops import OperatorsShown, ops_data, render
from distprof.merge.text.torch_table import ROWS, SORTS, torch_table
from distprof.merge.torch_table.averages import torch_averages
from distprof.merge.torch_table.session import read_session
from distprof.reporters.page import Page
from distprof.units import spans


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsView:
    """What is shown of the chosen operators."""

    by: Sequence[str] = ("op",)
    num_frames: int = 5
    """Functions that are kept apart by stack."""
    sort: str = "self"
    top: int | None = None
    """All without; 20 in text and Markdown."""
    form: str = "text"
    """text, json, csv or markdown."""
    parquet: Path | None = None
    """Written as well."""
    peak: float | None = None
    """FLOP/s of each rank's device, in place of the published rate."""
    bandwidth: float | None = None
    """Bytes/s of its memory, likewise."""


def ops(path: Path, *more: Path, selection: Selection, view: OpsView, strict: bool = False) -> str:
    """Operators of a run as text.

    Args:
        path: A run directory, traces of other programs, or a merge of them.
        *more: Further run directories of the same job.
        selection: Which operators.
        view: How they are shown.
        strict: Fail where something is missing.

    Raises:
        DataError: The run cannot be read, has no timeline, or no stacks where they are asked for.
        UsageError: There is no such column, type, rank, step or phase, a rate is no positive number, or a file exists.
        OutputError: The Parquet file cannot be written.
        IncompleteError: Something is missing and `strict` is set.
    """
    for option, rate in (("--peak", view.peak), ("--bandwidth", view.bandwidth)):
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"{option} must be positive, not {rate}")
    check_words(selection)
    check_new(view.parquet)
    opened = run_of_merge(path, *more)
    run = open_run(*opened.paths)
    by_stack = "stack" in view.by
    found = run_operators(run, (view.peak, view.bandwidth), merge=opened.merge,
                          num_frames=view.num_frames if by_stack else 0,
                          asked=Asked(selection=selection, keys=columns_of(view.by)))
    if by_stack and not any(one.has_stacks for one in found.shares):
        raise DataError(f"--by stack needs Python calls, and the timelines of {run.path} have none",
                        hint="torch.profiler records them with with_stack=True; distprof's passes do not")
    check(selection, found.ranks, found.all("steps"), found.all("phases"))
    problems: list[Problem] = [*run.problems, *found.problems]
    fail_if_incomplete(problems, strict=strict)
    table = _within(grouped_sums(found.sums, sort=view.sort), selection)
    if view.parquet is not None:
        write_parquet(table, view.parquet)
    if view.form == "json":
        return json.dumps(ops_data(run, found, table.head(view.top) if view.top else table), indent=1)
    if view.form == "csv":
        return as_csv(table.head(view.top) if view.top else table)
    shown = OperatorsShown(run=run, found=found, table=table, by=tuple(dict.fromkeys(view.by)),
                           top=view.top, paths=(path, *more), problems=problems)
    return render(shown, Page(), markdown=view.form == "markdown")


def _within(table: pl.DataFrame, selection: Selection) -> pl.DataFrame:
    """Groups whose calls take that long in the mean."""
    least, most = selection.min_ns, selection.max_ns
    table = table if least is None else table.filter(pl.col("mean_ns") >= least)
    return table if most is None else table.filter(pl.col("mean_ns") <= most)


def torch_ops(path: Path, *more: Path, rank: int | None, by_shape: bool, num_frames: int, sort: str | None,
              top: int | None) -> str:
    """Operators of one rank as torch.profiler prints them.

    Args:
        path: A run directory, traces of other programs, or a merge of them.
        *more: Further run directories of the same job.
        rank: Which; None: the only one.
        by_shape: Keeps calls with other shapes apart.
        num_frames: Keeps calls with other innermost frames of Python apart.
        sort: What torch's table takes for `sort_by`.
        top: Rows shown.

    Raises:
        DataError: The rank has no timeline.
        UsageError: There is no such rank or order.
    """
    run = with_timelines(open_run(*run_of_merge(path, *more).paths))
    traced = {one.number: one for one in run.ranks if one.trace is not None}
    if rank is None and len(traced) > 1:
        raise UsageError(f"--torch needs --rank: there are {len(traced)} ranks", hint="--torch --rank 0")
    if rank is not None and rank not in traced:
        raise UsageError(f"rank {rank} has no timeline; --rank can be {spans(sorted(traced))}")
    if sort is not None and sort not in SORTS:
        raise UsageError(f"unknown --sort {sort!r} for --torch; choose from {', '.join(SORTS)}")
    if not traced:
        raise DataError(f"no timeline in {run.path}")
    session = read_session(traced[min(traced) if rank is None else rank])
    return torch_table(torch_averages(session, by_shape=by_shape, num_frames=num_frames), sort=sort, rows=top or ROWS)
