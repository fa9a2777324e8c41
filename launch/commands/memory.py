"""`distprof memory`: allocations of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from distprof.errors import DataError, UsageError
from distprof.launch.options import ATTEMPT, PLACE, RUNS, STRICT, check_new, given_runs, write_parquet
from distprof.terminal import show


@click.command()
@RUNS
@click.option("--by", "by", multiple=True, metavar="KEY",
              help="Group by category, module, class, op, phase, rank or device. Can be repeated.  [default: "
                   "category]  For memory snapshots: line, stack, stream, rank or device.  [default: line]")
@click.option("--rank", "ranks", multiple=True, type=int, metavar="N", help="Only this rank.")
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Rows and tensors shown.  [default: 20 and 10]")
@click.option("--lifetimes", is_flag=True,
              help="Show the tensors that stayed allocated longest after their last use.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--parquet", default=None, type=PLACE, metavar="FILE",
              help="Also write all allocations to a new Parquet file.")
@ATTEMPT
@STRICT
def memory(runs: tuple[Path, ...], *, by: tuple[str, ...], ranks: tuple[int, ...], top: int | None, form: str | None,
           lifetimes: bool, parquet: Path | None, attempt: int | None, strict: bool) -> None:
    """Show what holds the memory at the peak.

    RUN is a run directory with a memory pass (--steps memory=1), traces from torch.profiler with profile_memory=True,
    or snapshots from torch.cuda.memory._dump_snapshot, one per rank. Snapshots are read as plain data: no code in them
    is run.
    """
    runs = given_runs(runs, attempt)
    from distprof.merge.snapshot.run_snapshots import find_snapshots

    check_new(parquet)
    files = find_snapshots(runs)
    if not files:
        show(_of_run(runs, by=by, ranks=ranks, top=top, as_json=form == "json", lifetimes=lifetimes, parquet=parquet,
                     strict=strict))
        return
    if lifetimes:
        raise UsageError("--lifetimes needs a run with a memory pass, not memory snapshots",
                         hint="snapshots do not show when tensors were last used")
    show(_of_snapshots(files, by=by, ranks=ranks, top=top, as_json=form == "json", parquet=parquet, strict=strict))


def _of_snapshots(files: Sequence[Path], *, by: Sequence[str], ranks: Sequence[int], top: int | None, as_json: bool,
                  parquet: Path | None, strict: bool) -> str:
    """Returns what snapshots of torch.cuda.memory show, as text or JSON.

    Raises:
        DataError: No snapshot can be read.
        UsageError: There is no such rank or key.
        OutputError: The Parquet file cannot be written.
        IncompleteError: A snapshot cannot be read and `strict` is set.
    """
    from distprof.merge.snapshot.run_snapshots import TENSORS, ranks_of, run_snapshots
    from distprof.merge.text.problems import fail_if_incomplete
    from distprof.merge.text.snapshots import SnapshotsShown, render, snapshots_data
    from distprof.reporters.page import Page

    by = tuple(dict.fromkeys(by)) or ("line",)
    of_rank, named = ranks_of(files)
    found = run_snapshots(of_rank, by=by, ranks=ranks, top=top or TENSORS, with_rows=parquet is not None)
    fail_if_incomplete(list(found.problems), strict=strict)
    if parquet is not None and found.rows is not None:
        write_parquet(found.rows, parquet)
    if as_json:
        return json.dumps(snapshots_data(found, top), indent=1)
    return render(SnapshotsShown(found=found, by=by, top=top, named=named, files=of_rank), Page())


def _of_run(runs: Sequence[Path], *, by: Sequence[str], ranks: Sequence[int], top: int | None, as_json: bool,
            lifetimes: bool, parquet: Path | None, strict: bool) -> str:
    """Returns the allocations of a run as text or JSON.

    Raises:
        DataError: The run cannot be read, or has no allocations.
        UsageError: There is no such rank or key.
        OutputError: The Parquet file cannot be written.
        IncompleteError: Data is missing and `strict` is set.
    """
    from distprof.merge.memory.run_memory import grouped, longest_unused, run_memory
    from distprof.merge.run.open_run import open_run
    from distprof.merge.text.memory import MemoryShown, memory_data, render
    from distprof.merge.text.problems import fail_if_incomplete
    from distprof.reporters.page import Page

    run = open_run(*runs)
    found = run_memory(run)
    problems = [*run.problems, *found.problems]
    fail_if_incomplete(problems, strict=strict)
    found = found.of_ranks(ranks)
    if lifetimes and all(peak.unused_bytes is None for peak in found.peaks):
        raise DataError(f"{runs[0]} has no memory pass that shows when tensors were last used",
                        hint="record one with --steps memory=1; torch.profiler traces do not show it")
    by = tuple(dict.fromkeys(by)) or ("category",)
    table = grouped(found.rows, found.peaks, by)
    if parquet is not None:
        write_parquet(found.rows.drop("first", "last"), parquet)
    if as_json:
        return json.dumps(memory_data(run, found, table, top) | (
            {"lifetimes": longest_unused(found.rows, top).to_dicts()} if lifetimes else {}), indent=1)
    return render(MemoryShown(run=run, found=found, table=table, by=by, top=top, paths=runs, problems=problems,
                              lifetimes=lifetimes), Page())
