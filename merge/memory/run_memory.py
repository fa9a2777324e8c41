"""Allocations of all ranks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from distprof.contract.paths import MEMORY_JSON
from distprof.contract.problems import Unreadable
from distprof.contract.tables import TENSORS
from distprof.errors import DataError
from distprof.merge.memory.allocations import HELD, SCHEMA, allocations_of
from distprof.merge.memory.peak import Peak, peaks_of
from distprof.merge.operators.memory_events import MemoryEvents
from distprof.merge.operators.rank_timeline import read_timeline
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import read_table
from distprof.merge.scan.trace_file import TraceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """What was found."""

    rows: pl.DataFrame
    """`allocations_of` of all ranks."""
    peaks: Sequence[Peak]
    """By rank and device."""
    held: pl.DataFrame
    """What each rank held when the recording began: rank, device, category, size_bytes."""
    num_bad: int
    """Events that say neither size nor address, which were left out."""
    problems: Sequence[Unreadable]


def run_memory(run: Run) -> RunMemory:
    """Reads the allocations of a run: those of the memory pass, or those of traces of torch.profiler.

    Raises:
        DataError: No rank has any.
    """
    recorded = run.kind != "traces"
    tensors = read_table(run, TENSORS) if recorded else None
    held = tensors.rows if tensors else pl.DataFrame(schema={"rank": pl.Int64(), **HELD, "size_bytes": pl.Int64()})
    problems = list(tensors.problems if tensors else ())
    peaks, parts, num_bad = list[Peak](), list[pl.DataFrame](), 0
    for rank in run.ranks:
        source = _of_the_pass(rank) if recorded else rank
        if source.trace is None:
            continue
        try:
            events = MemoryEvents()
            timeline = read_timeline(source, events)
        except DataError as error:
            problems.append(Unreadable(rank=rank.number, detail=str(error)))
            continue
        rows, found = allocations_of(rank.number, timeline, events, held.filter(rank=rank.number))
        parts.append(rows)
        peaks += peaks_of(rank.number, rows, found)
        num_bad += events.num_bad
    if not peaks:
        raise DataError(f"expected allocations in {run.path}, found none",
                        hint="--steps memory=1 records them" if recorded else "torch.profiler: profile_memory=True")
    return RunMemory(rows=pl.concat([pl.DataFrame(schema=SCHEMA), *parts]), peaks=peaks, held=_at_the_start(held),
                     num_bad=num_bad, problems=problems)


def _of_the_pass(rank: Rank) -> Rank:
    """The same rank with the timeline of its memory pass."""
    path = rank.folder / MEMORY_JSON
    return replace(rank, trace=TraceFile(path=path) if path.is_file() else None)


def _at_the_start(held: pl.DataFrame) -> pl.DataFrame:
    """What was held before the first step of the pass, each storage once."""
    first = held.filter(pl.col("time_ns") == pl.col("time_ns").min().over("rank"))
    return first.unique(["rank", "device", "address"], keep="first", maintain_order=True).group_by(
        "rank", "device", "category", maintain_order=True).agg(pl.col("size_bytes").sum())
