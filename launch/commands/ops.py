"""`distprof ops`: operators of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distprof.errors import DataError, UsageError
from distprof.launch.options import (
    ATTEMPT,
    PLACE,
    RUNS,
    STRICT,
    TIME_UNIT,
    as_csv,
    check_new,
    check_rates,
    given_runs,
    given_workers,
    worker_options,
    write_parquet,
)
from distprof.terminal import show
from distprof.units import spans

if TYPE_CHECKING:
    from distprof.merge.operators.selection import Selection

FRAMES = 5
LONGEST = 64
"""Default of `--longest`: largest number of kernels in a sequence."""


@click.command()
@RUNS
@click.option("--by", "by", multiple=True, metavar="KEY",
              help="Group calls by op, type, category (matrix product, attention, norm, copy, ...), module, class, "
                   "shape, dtype, phase, rank, stream, step or stack. Can be repeated.  [default: op]")
@click.option("--sort", default=None, metavar="COLUMN",
              help="Sort by self time, a column of --json, or a sort key of torch's key_averages, largest first.  "
                   "[default: self]")
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Rows shown.  [default: 20; all with --json and --csv]")
@click.option("--op", default=None, metavar="REGEX", help="Only operators whose name matches.")
@click.option("--type", "types", multiple=True, metavar="TYPE",
              help="Only this type: operator, annotation, runtime, kernel, memcpy or memset.  [default: operator, "
                   "runtime, and device work that belongs to neither]")
@click.option("--module", default=None, metavar="GLOB", help="Only calls in these modules, like 'layers.*.attention'.")
@click.option("--dtype", default=None, metavar="TYPE", help="Only calls with an input of this type, like float.")
@click.option("--rank", "ranks", multiple=True, type=int, metavar="N", help="Only this rank.")
@click.option("--step", "steps", multiple=True, type=int, metavar="N", help="Only this step.")
@click.option("--phase", "phases", multiple=True, metavar="PHASE",
              help="Only forward, backward, recompute, optimizer, evaluation or data.")
@click.option("--stack", default=None, type=click.IntRange(min=1), metavar="N",
              help=f"With --by stack: number of innermost Python functions to group by.  [default: {FRAMES}]")
@click.option("--min-time", default=None, type=float, metavar="US",
              help="Only rows whose calls take at least this long on average, in microseconds.")
@click.option("--max-time", default=None, type=float, metavar="US",
              help="Only rows whose calls take at most this long on average, in microseconds.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@click.option("--markdown", "form", flag_value="markdown", help="Print a Markdown table.")
@click.option("--parquet", default=None, type=PLACE, metavar="FILE",
              help="Also write the rows to a new Parquet file.")
@click.option("--peak", default=None, type=float, metavar="FLOP/S",
              help="Peak rate of each rank's device, such as 1.2e12, for the roofline.  [default: the published rate]")
@click.option("--bandwidth", default=None, type=float, metavar="BYTES/S",
              help="Memory bandwidth of that device.  [default: the published one]")
@click.option("--captured", "captured", multiple=True, type=PLACE, metavar="TRACE",
              help="Take the operators of CUDA graphs from this trace, in which they were captured. Can be repeated.  "
                   "[default: those captured in the trace itself]")
@click.option("--sequences", is_flag=True,
              help="Show kernels that streams of GPUs ran in the same order more than once, to be fused or captured in "
                   "a graph. --op takes those within calls of matching operators; --sort by device_ns, gap_ns, calls "
                   "or kernels.")
@click.option("--longest", default=None, type=click.IntRange(min=2), metavar="N",
              help=f"With --sequences: most kernels of a sequence.  [default: {LONGEST}]")
@click.option("--counters", is_flag=True,
              help="Show counters of CUPTI that are in traces, by operator and kernel. Only with --rank, --top and "
                   "--json.")
@click.option("--torch", "as_torch", is_flag=True,
              help="Print what torch's key_averages().table() prints, for one --rank. --by shape groups like "
                   "group_by_input_shape, --by stack like group_by_stack_n; --sort and --top are its sort_by and "
                   "row_limit.")
@worker_options
@TIME_UNIT
@ATTEMPT
@STRICT
def ops(runs: tuple[Path, ...], *, by: tuple[str, ...], sort: str | None, top: int | None, op: str | None,
        types: tuple[str, ...], module: str | None, dtype: str | None, ranks: tuple[int, ...], steps: tuple[int, ...],
        phases: tuple[str, ...], stack: int | None, min_time: float | None, max_time: float | None, form: str | None,
        parquet: Path | None, peak: float | None, bandwidth: float | None, captured: tuple[Path, ...],
        sequences: bool, longest: int | None,
        counters: bool, as_torch: bool, attempt: int | None, strict: bool, workers: int | None,
        scheduler: str | None) -> None:
    """Show operators: time on host and device, FLOPs and bytes.

    RUN is a run directory, traces from torch.profiler, or a merge of either. FLOPs come from the count pass; without
    one, they come from the shapes in the traces (record_shapes).
    """
    if min_time is not None and max_time is not None and min_time > max_time:
        raise UsageError(f"--min-time must be below --max-time, found {min_time:g} and {max_time:g}")
    if stack is not None and "stack" not in by:
        raise UsageError("--stack needs --by stack", hint=f"--by stack --stack {stack}")
    if longest is not None and not sequences:
        raise UsageError("--longest needs --sequences", hint=f"--sequences --longest {longest}")
    if sequences and (as_torch or form not in (None, "json") or any(
            one is not None for one in (*by, *types, dtype, min_time, max_time, parquet, peak, bandwidth, *captured))):
        raise UsageError("--sequences can be combined only with --longest, --op, --module, --rank, --step, --phase, "
                         "--sort, --top and --json")
    if counters:
        others = (op, module, dtype, min_time, max_time, parquet, peak, bandwidth, sort, *by, *types, *steps, *phases,
                  *captured)
        if sequences or as_torch or form not in (None, "json") or any(one is not None for one in others):
            raise UsageError("--counters can be combined only with --rank, --top and --json")
        from distprof.merge.text.counters import counters_text

        show(counters_text(*given_runs(runs, attempt), ranks=ranks, top=top, as_json=form == "json", strict=strict))
        return
    if as_torch:
        ranks = tuple(dict.fromkeys(ranks))
        others = (op, module, dtype, min_time, max_time, form, parquet, *types, *steps, *phases, *ranks[1:], *captured)
        if any(one is not None for one in others) or set(by) - {"shape", "stack"}:
            raise UsageError("--torch can be combined only with --rank, --by shape, --by stack, --stack, --sort and "
                             "--top")
        show(_torch_table(given_runs(runs, attempt), rank=ranks[0] if ranks else None, by_shape="shape" in by,
                          num_frames=stack or FRAMES if "stack" in by else 0, sort=sort, top=top))
        return
    runs = given_runs(runs, attempt)
    from distprof.merge.operators.selection import Selection
    from distprof.merge.run.timelines import reading_in

    selection = Selection(
        types=types, op=op, module=module, dtype=dtype, ranks=ranks, steps=steps, phases=phases,
        min_ns=None if min_time is None else 1000 * min_time, max_ns=None if max_time is None else 1000 * max_time)
    with reading_in(given_workers(workers, scheduler)):
        if sequences:
            from distprof.merge.text.sequences import sequences_text

            show(sequences_text(*runs, selection=selection, most=longest or LONGEST, sort=sort or "self", top=top,
                                as_json=form == "json", strict=strict))
            return
        show(ops_text(*runs, selection=selection, by=by or ("op",), num_frames=stack or FRAMES, sort=sort or "self",
                      top=top, form=form or "text", parquet=parquet, peak=peak, bandwidth=bandwidth, captured=captured,
                      strict=strict))


def ops_text(*runs: Path, selection: Selection, by: Sequence[str] = ("op",), num_frames: int = FRAMES,
             sort: str = "self", top: int | None = None, form: str = "text", parquet: Path | None = None,
             peak: float | None = None, bandwidth: float | None = None, captured: Sequence[Path] = (),
             strict: bool = False) -> str:
    """Returns what `distprof ops` prints about the operators of a run.

    Args:
        *runs: A run directory, or several of one job; traces of other programs; or a merge of them.
        selection: Operators to include.
        by: Keys by which calls are grouped.
        num_frames: Number of innermost Python functions by which calls are grouped, if `by` has `stack`.
        sort: Column to sort by, largest first.
        top: Number of rows; None: 20 in text and Markdown, all in JSON and CSV.
        form: `text`, `json`, `csv` or `markdown`.
        parquet: File to which the rows are also written.
        peak: Peak FLOP/s of each rank's device, instead of the published rate.
        bandwidth: Memory bandwidth of that device in bytes/s, instead of the published one.
        captured: Traces in which CUDA graphs were captured.
        strict: Fails if data is missing.

    Raises:
        DataError: The run or a trace with captures cannot be read, or the run has no timeline, or no stacks although
            `by` has `stack`.
        UsageError: There is no such column, type, rank, step or phase; a rate is not a positive number; or the Parquet
            file exists.
        OutputError: The Parquet file cannot be written.
        IncompleteError: Data is missing and `strict` is set.
    """
    from distprof.merge.operators.grouping import columns_of, grouped_sums
    from distprof.merge.operators.merged_operators import run_of_merge
    from distprof.merge.operators.rank_share import Asked
    from distprof.merge.operators.run_operators import run_operators
    from distprof.merge.operators.selection import check, check_words
    from distprof.merge.run.open_run import open_run
    from distprof.merge.text.ops import OperatorsShown, ops_data, render
    from distprof.merge.text.problems import fail_if_incomplete
    from distprof.reporters.page import Page

    check_rates(peak=peak, bandwidth=bandwidth)
    check_words(selection)
    check_new(parquet)
    opened = run_of_merge(*runs)
    run, by_stack = open_run(*opened.paths), "stack" in by
    found = run_operators(run, (peak, bandwidth), merge=opened.merge, num_frames=num_frames if by_stack else 0,
                          captured=captured, asked=Asked(selection=selection, keys=columns_of(by)))
    if by_stack and not any(one.has_stacks for one in found.shares):
        raise DataError(f"--by stack needs Python calls, and the timelines of {run.path} have none",
                        hint="torch.profiler records them with with_stack=True; distprof's passes do not")
    check(selection, found.ranks, found.all("steps"), found.all("phases"))
    problems = [*run.problems, *found.problems]
    fail_if_incomplete(problems, strict=strict)
    table = selection.of_groups(grouped_sums(found.sums, sort=sort))
    if parquet is not None:
        write_parquet(table, parquet)
    if form == "json":
        return json.dumps(ops_data(run, found, table.head(top) if top else table), indent=1)
    if form == "csv":
        return as_csv(table.head(top) if top else table)
    shown = OperatorsShown(run=run, found=found, table=table, by=tuple(dict.fromkeys(by)), top=top, paths=runs,
                           captured=captured, problems=problems)
    return render(shown, Page(), markdown=form == "markdown")


def _torch_table(runs: Sequence[Path], *, rank: int | None, by_shape: bool, num_frames: int, sort: str | None,
                 top: int | None) -> str:
    """Returns the operators of one rank as torch.profiler prints them.

    Args:
        runs: As for `ops_text`.
        rank: The rank; None if only one has a timeline.
        by_shape: Groups calls by input shapes.
        num_frames: Groups calls by this many innermost Python frames; 0: does not.
        sort: `sort_by` of torch's table.
        top: Number of rows; None: torch's default.

    Raises:
        DataError: No rank has a timeline.
        UsageError: There is no such rank or sort key, or several ranks have a timeline and `rank` is None.
    """
    from distprof.merge.operators.merged_operators import run_of_merge
    from distprof.merge.run.open_run import open_run
    from distprof.merge.run.timelines import with_timelines
    from distprof.merge.text.torch_table import ROWS, SORTS, torch_table
    from distprof.merge.torch_table.averages import torch_averages
    from distprof.merge.torch_table.session import read_session

    run = with_timelines(open_run(*run_of_merge(*runs).paths))
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
