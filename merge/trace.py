"""The merged Chrome trace: the trace of every rank comes in, one gzipped JSON file goes out.

Each rank is a gzip member of its own, made where the rank was read; the file is their concatenation.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from isal import igzip

from distprof.contract import EVENTS, FORMAT, TRACE_JSON
from distprof.merge.chrome import Member, RankTrace, rewrite
from distprof.merge.run import Rank, Run, clock_of

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
    """Writes the merged trace of all ranks that have one; None where no rank has.

    Raises:
        DataError: The trace of a rank cannot be read.
    """
    ranks = [rank for rank in run.ranks if (rank.folder / TRACE_JSON).is_file()]
    if not ranks:
        return None
    origin_ns = _origin_ns(run, ranks)
    traces = [RankTrace(path=rank.folder / TRACE_JSON, rank=rank.number, title=_title(rank), origin_ns=origin_ns,
                        clock=run.clock.line(rank.number)) for rank in ranks]
    parts = [output.with_name(f".rank{trace.rank}.part") for trace in traces]
    try:
        with _executor(traces) as executor:
            members = _results(executor, traces, parts)
        _concatenate(output, members, _metadata(run, ranks, members, origin_ns))
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return MergedTrace(members=members, num_bytes=output.stat().st_size)


def _executor(traces: Iterable[RankTrace]) -> Any:
    if sum(trace.path.stat().st_size for trace in traces) < ENOUGH_FOR_PROCESSES_BYTES:
        return nullcontext(None)
    # spawn: a forked child would inherit the locks of polars' threads
    return ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=get_context("spawn"))


def _results(executor: Executor | None, traces: list[RankTrace], parts: list[Path]) -> list[Member]:
    if executor is None:
        return list(map(rewrite, traces, parts))
    futures: list[Future[Member]] = [executor.submit(rewrite, *job) for job in zip(traces, parts, strict=True)]
    return [future.result() for future in futures]


def _title(rank: Rank) -> str:
    return " | ".join(filter(None, (f"rank {rank.number}", rank.place, rank.info.host)))


def _origin_ns(run: Run, ranks: list[Rank]) -> int:
    """The first event of all ranks, rounded down to 1 us; the table is exact to 1 ns."""
    first = min((run.clock.line(rank.number).shift(_first_ns(rank)) for rank in ranks if rank.has(EVENTS)), default=0)
    return (first - 1) // 1000 * 1000


def _first_ns(rank: Rank) -> int:
    value = pl.scan_parquet(rank.folder / EVENTS.file).select(pl.col("start_ns").min()).collect().item()
    return int(value) if value is not None else 2**62


def _metadata(run: Run, ranks: list[Rank], members: list[Member], origin_ns: int) -> dict[str, Any]:
    """What the viewer shows as trace info: per rank mp, dp, host, offset and counts."""
    each = {
        str(rank.number): {
            "mp_size": run.mp_size, "dp_size": run.dp_size, "coordinates": rank.info.coordinates,
            "host": rank.info.host, "offset_ns": run.clock.line(rank.number).offset_ns,
            "drift_ppm": run.clock.line(rank.number).drift_ppm,
            "uncertainty_ns": run.clock.ranks[rank.number].uncertainty_ns, "num_slices": member.num_slices,
            "num_events": member.num_events, "kineto": member.metadata,
        }
        for rank, member in zip(ranks, members, strict=True)
    }
    return {"format": FORMAT, "run_id": run.run_id, "world_size": run.world_size, "topology": run.topology,
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
