"""The merged Chrome trace: the trace of every rank comes in, one gzipped JSON file goes out.

Each rank is a gzip member of its own, made where the rank was read; the file is their concatenation.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from isal import igzip

from distprof.contract import EVENTS, FORMAT
from distprof.errors import DataError
from distprof.merge.chrome import Member, RankTrace, rewrite
from distprof.merge.run import Rank, Run, clock_of
from distprof.merge.streams import TraceFile
from distprof.merge.tables import UNREADABLE

ENOUGH_FOR_PROCESSES_BYTES = 16 << 20
"""Compressed input from which on starting worker processes pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTrace:
    """What went into the file."""

    members: list[Member]
    num_bytes: int

    @property
    def num_slices(self) -> int:
        """Slices of all ranks."""
        return sum(member.num_slices for member in self.members)

    @property
    def num_moved(self) -> int:
        """Events that lay before the origin."""
        return sum(member.num_moved for member in self.members)


def merge_traces(run: Run, output: Path) -> MergedTrace | None:
    """Writes the merged trace of all ranks that have one; None where no rank has one that can be read.

    A trace that cannot be read is left out and goes to `run.problems`.
    """
    found = {rank.number: (rank, rank.trace) for rank in run.ranks if rank.trace is not None}
    origin_ns = _origin_ns([rank for rank, _ in found.values()])
    traces = [RankTrace(path=trace, rank=number, title=_title(rank), origin_ns=origin_ns)
              for number, (rank, trace) in found.items()]
    parts = [output.with_name(f".rank{trace.rank}.part") for trace in traces]
    try:
        with _executor([trace for _, trace in found.values()]) as executor:
            members = _results(executor, traces, parts, run.problems)
        if not members:
            return None
        _concatenate(output, members, _metadata(run, [found[member.rank][0] for member in members], members, origin_ns))
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return MergedTrace(members=members, num_bytes=output.stat().st_size)


def _executor(traces: Iterable[TraceFile]) -> Any:
    if sum(trace.num_bytes for trace in traces) < ENOUGH_FOR_PROCESSES_BYTES:
        return nullcontext(None)
    # spawn: a forked child would inherit the locks of polars' threads
    return ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=get_context("spawn"))


def _results(executor: Executor | None, traces: list[RankTrace], parts: list[Path],
             problems: list[str]) -> list[Member]:
    jobs = list(zip(traces, parts, strict=True))
    waiting: list[Callable[[], Member]] = [partial(rewrite, *job) for job in jobs] if executor is None else [
        executor.submit(rewrite, *job).result for job in jobs]
    members = []
    for trace, result in zip(traces, waiting, strict=True):
        try:
            members.append(result())
        except DataError as error:
            problems.append(f"rank {trace.rank}: {error.args[0]}")
    return members


def _title(rank: Rank) -> str:
    return " | ".join(filter(None, (f"rank {rank.number}", rank.place, rank.info.host)))


def _origin_ns(ranks: list[Rank]) -> int:
    """The first event of all ranks, rounded down to 1 us; the table is exact to 1 ns."""
    known = [first for rank in ranks if rank.has(EVENTS) and (first := _first_ns(rank)) is not None]
    return (min(known, default=1) - 1) // 1000 * 1000


def _first_ns(rank: Rank) -> int | None:
    try:
        value = pl.scan_parquet(rank.folder / EVENTS.file).select(pl.col("start_ns").min()).collect().item()
    except UNREADABLE:
        return None  # a damaged table: the other ranks tell the origin
    return int(value) if value is not None else None


def _metadata(run: Run, ranks: list[Rank], members: list[Member], origin_ns: int) -> dict[str, Any]:
    """What the viewer shows as trace info: per rank mp, dp, host, offset and counts."""
    each = {
        str(rank.number): {
            "mp_size": run.mp_size if run.topology_known else None,
            "dp_size": run.dp_size if run.topology_known else None, "coordinates": rank.info.coordinates,
            "host": rank.info.host, "offset_ns": 0, "uncertainty_ns": None, "num_slices": member.num_slices,
            "num_events": member.num_events, "kineto": member.metadata,
        }
        for rank, member in zip(ranks, members, strict=True)
    }
    return {"format": FORMAT, "run_id": run.run_id, "world_size": run.world_size,
            "topology": run.topology if run.topology_known else None,
            "origin_ns": origin_ns, "clock": clock_of(run), "missing_ranks": run.missing, "ranks": each}


def _concatenate(output: Path, members: list[Member], metadata: dict[str, Any]) -> None:
    head = b'{"displayTimeUnit":"ms","metadata":' + msgspec.json.encode({"distprof": metadata}) + b',"traceEvents":[\n'
    with output.open("wb") as file:
        file.write(igzip.compress(head, mtime=0))
        for index, member in enumerate(members):
            if index:
                file.write(igzip.compress(b",\n", mtime=0))
            with member.path.open("rb") as part:
                shutil.copyfileobj(part, file)
        file.write(igzip.compress(b"\n]}\n", mtime=0))
