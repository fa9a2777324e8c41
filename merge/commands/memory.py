"""Makes the text of `distprof memory`, of runs and of snapshots of torch.cuda.memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.paths import FORMAT
from distprof.contract.problems import Problem
from distprof.errors import DataError, UsageError
from distprof.merge.commands.incomplete import fail_if_incomplete
from distprof.merge.commands.table_files import check_new, write_parquet
from distprof.merge.memory.run_memory import RunMemory, grouped, longest_unused, run_memory
from distprof.merge.run.open_run import open_run
from distprof.merge.snapshot.run_snapshots import (
    TENSORS,
    OneDevice,
    RunSnapshots,
    find_snapshots,
    ranks_of,
    run_snapshots,
)
from distprof.merge.text.memory import MemoryShown, memory_data, render
from distprof.merge.text.snapshots import SnapshotsShown
from distprof.merge.text.snapshots import render as render_snapshots
from distprof.reporters.page import Page
from distprof.units import spans


def snapshots(files: Sequence[Path], *, by: Sequence[str], ranks: Sequence[int], top: int | None, as_json: bool,
              parquet: Path | None, strict: bool) -> str:
    """Memory snapshots as text.

    Raises:
        DataError: None can be read.
        UsageError: There is no such rank or key.
        OutputError: The Parquet file cannot be written.
        IncompleteError: One cannot be read, and `strict` is set.
    """
    by = tuple(dict.fromkeys(by)) or ("line",)
    of_rank, named = ranks_of(files)
    found = run_snapshots(of_rank, by=by, ranks=ranks, top=top or TENSORS, with_rows=parquet is not None)
    fail_if_incomplete(list(found.problems), strict=strict)
    if parquet is not None and found.rows is not None:
        write_parquet(found.rows, parquet)
    if as_json:
        return json.dumps(_data(found, top), indent=1)
    return render_snapshots(SnapshotsShown(found=found, by=by, top=top, named=named, files=of_rank), Page())


def _data(found: RunSnapshots, top: int | None) -> dict[str, Any]:
    return {"format": FORMAT, "kind": "memory_snapshot",
            "ranks": sorted({one.memory.rank for one in found.devices}),
            "devices": [_device(one) for one in found.devices],
            "groups": found.groups.head(top or len(found.groups)).to_dicts()}


def _device(one: OneDevice) -> dict[str, Any]:
    memory = one.memory
    plain = {name: getattr(memory, name) for name in (
        "rank", "device", "peak_bytes", "peak_us", "peak_reserved_bytes", "before_bytes", "entries", "unseen")}
    return {**plain, "num_tensors": one.num_alive, "now": asdict(memory.division),
            "failures": [asdict(failure) for failure in memory.failures], "settings": one.settings,
            "unknown_entries": one.num_other, "timeline": memory.timeline.to_dicts(),
            "tensors": one.largest.drop("is_at_peak", "is_alive").to_dicts()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """What is shown."""

    by: Sequence[str] = ()
    """category without; of snapshots line."""
    ranks: Sequence[int] = ()
    """All without."""
    top: int | None = None
    """Rows and tensors shown."""
    form: str = "text"
    """text or json."""
    lifetimes: bool = False
    """Tensors that were kept longest for nothing are shown as well."""
    parquet: Path | None = None
    """Gets a row per allocation as well."""


def memory(path: Path, *more: Path, view: MemoryView, strict: bool = False) -> str:
    """Memory of a run as text.

    Args:
        path: A run directory, traces of other programs, or memory snapshots.
        *more: Further run directories of the same job, or further snapshots.
        view: What is shown.
        strict: Fail where something is missing.

    Raises:
        DataError: The run cannot be read, or has no allocations.
        UsageError: There is no such rank or key, or the Parquet file exists.
        OutputError: The Parquet file cannot be written.
        IncompleteError: Something is missing and `strict` is set.
    """
    check_new(view.parquet)
    files = find_snapshots((path, *more))
    if files:
        if view.lifetimes:
            raise UsageError("--lifetimes needs a run with a memory pass, not memory snapshots",
                             hint="snapshots do not show when tensors were last used")
        return snapshots(files, by=view.by, ranks=view.ranks, top=view.top, as_json=view.form == "json",
                         parquet=view.parquet, strict=strict)
    run = open_run(path, *more)
    found = run_memory(run)
    problems: list[Problem] = [*run.problems, *found.problems]
    fail_if_incomplete(problems, strict=strict)
    found = _of_ranks(found, view.ranks)
    if view.lifetimes and all(peak.unused_bytes is None for peak in found.peaks):
        raise DataError(f"{path} has no memory pass that shows when tensors were last used",
                        hint="record one with --steps memory=1; torch.profiler traces do not show it")
    by = tuple(dict.fromkeys(view.by)) or ("category",)
    table = grouped(found.rows, found.peaks, by)
    if view.parquet is not None:
        write_parquet(found.rows.drop("first", "last"), view.parquet)
    if view.form == "json":
        return json.dumps(memory_data(run, found, table, view.top) | (
            {"lifetimes": longest_unused(found.rows, view.top).to_dicts()} if view.lifetimes else {}), indent=1)
    return render(MemoryShown(run=run, found=found, table=table, by=by, top=view.top,
                              paths=(path, *more), problems=problems, lifetimes=view.lifetimes), Page())


def _of_ranks(found: RunMemory, ranks: Sequence[int]) -> RunMemory:
    known = sorted({peak.rank for peak in found.peaks})
    for rank in ranks:
        if rank not in known:
            raise UsageError(f"rank {rank} has no allocations; --rank can be {spans(known)}")
    if not ranks:
        return found
    return replace(found, peaks=[peak for peak in found.peaks if peak.rank in ranks],
                   rows=found.rows.filter(pl.col("rank").is_in(ranks)),
                   held=found.held.filter(pl.col("rank").is_in(ranks)))
