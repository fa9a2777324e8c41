"""The merged Chrome trace: the trace of every rank comes in, one gzipped JSON file and a table a rank go out.

Each rank is read twice: to learn what has to be known of all ranks before the first byte is written, and to write. Each
is a gzip member of its own, made where the rank was read; the file is their concatenation.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import polars as pl
from isal import igzip

from distprof.contract import FORMAT, MERGED_EVENTS, STEPS, TRACE_JSON
from distprof.errors import DataError
from distprof.merge.clock import RankClock
from distprof.merge.engine import is_compiled
from distprof.merge.index import Index, index_trace
from distprof.merge.lanes import NUMBERS_PER_RANK
from distprof.merge.rewrite import Member, RankPlan, rewrite
from distprof.merge.run import Rank, Run, clock_of
from distprof.merge.streams import TraceFile

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTrace:
    """What went into the file."""

    members: list[Member]
    num_bytes: int
    problems: list[str]
    """What of the ranks' traces could not be read, in words."""

    @property
    def num_slices(self) -> int:
        """Slices of all ranks."""
        return sum(member.num_slices for member in self.members)

    @property
    def num_moved(self) -> int:
        """Events that lay before the origin."""
        return sum(member.num_moved for member in self.members)

    @property
    def num_side(self) -> int:
        """Slices that overlap another one of their thread, and stand beside it."""
        return sum(member.num_side for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A rank and what the first pass learned of its trace."""

    rank: Rank
    trace: TraceFile
    index: Index


def merge_traces(run: Run, folder: Path) -> MergedTrace | None:
    """Writes the merged trace of all ranks that have one, and their events as tables; None where no rank has.

    Raises:
        DataError: No rank's trace can be read.
    """
    traces = [(rank, TraceFile(path=rank.folder / TRACE_JSON, label=f"{rank.folder.name}/{TRACE_JSON}"))
              for rank in run.ranks if (rank.folder / TRACE_JSON).is_file()]
    if not traces:
        return None
    parts = [folder / f".rank{rank.number}.part" for rank, _ in traces]
    tables = folder / MERGED_EVENTS.file
    tables.mkdir()
    try:
        with _executor([trace for _, trace in traces]) as executor:
            problems: list[str] = []
            read = _read(executor, traces, problems)
            plans = _plans(run, read)
            jobs = [(plan, part, tables / f"{rank.rank.folder.name}.parquet")
                    for plan, part, rank in zip(plans, parts, read, strict=False)]
            members = [member for member, _ in _map(executor, _rewrite, jobs)]
        _concatenate(folder / TRACE_JSON, members, _metadata(run, read, members, plans))
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return MergedTrace(members=members, num_bytes=(folder / TRACE_JSON).stat().st_size, problems=problems)


def _rewrite(job: tuple[RankPlan, Path, Path]) -> Member:
    return rewrite(*job)


def _executor(traces: Sequence[TraceFile]) -> Executor:
    workers = min(len(traces), os.cpu_count() or 1)
    if is_compiled():  # it runs without the interpreter's lock
        return ThreadPoolExecutor(workers)
    # spawn: a forked child would inherit the locks of polars' threads
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _map(executor: Executor, work: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[tuple[Result, Job]]:
    futures = [executor.submit(work, job) for job in jobs]
    try:
        for future, job in zip(futures, jobs, strict=True):
            yield future.result(), job
    finally:
        for future in futures:
            future.cancel()


def _index(trace: TraceFile) -> Index | DataError:
    try:
        return index_trace(trace)
    except DataError as error:
        return error


def _read(executor: Executor, traces: list[tuple[Rank, TraceFile]], problems: list[str]) -> list[Read]:
    found, first = [], None
    for (index, trace), (rank, _) in zip(_map(executor, _index, [trace for _, trace in traces]), traces, strict=True):
        if isinstance(index, DataError):
            first = first or index
            problems.append(f"rank {rank.number} is not in the trace: {index}")
            continue
        problems += [f"rank {rank.number}: {problem}" for problem in _damages(trace, index)]
        found.append(Read(rank=rank, trace=trace, index=index))
    if not found and first is not None:
        raise first
    return found


def _damages(trace: TraceFile, index: Index) -> Iterator[str]:
    losses = index.losses
    if index.damage is not None:
        yield f"{trace.name} {index.damage}"
    if losses.is_cut:
        yield (f"{trace.name} ends inside of an event: {losses.lost_bytes} bytes are lost, "
               f"{index.num_events} events are whole")
    elif losses.damaged_events:
        yield f"{trace.name} is damaged at {losses.damaged_events} places: {losses.lost_bytes} bytes are lost"
    if index.bad_times:
        yield f"{trace.name} has {index.bad_times} events with a time that is no number: they are left out"


def _plans(run: Run, read: list[Read]) -> list[RankPlan]:
    clocks = [RankClock() for _ in read]
    origin_ns = min((int(clock.to_common(one.index.first_ns)) for one, clock in zip(read, clocks, strict=True)
                     if one.index.first_ns is not None), default=1)
    origin_ns = (origin_ns - 1) // 1000 * 1000
    most = max((len(one.index.threads) * (1 + one.index.num_lanes) + 64 for one in read), default=0)
    numbers = max(NUMBERS_PER_RANK, 1 << (most - 1).bit_length())
    highest = max((one.rank.number for one in read), default=0)
    if numbers * (highest + 1) >= 1 << 31:
        raise DataError(f"expected no more than {(1 << 31) // (highest + 1)} threads in a trace of rank {highest} or "
                        f"below, found {most}", hint="merge fewer ranks at once")
    return [RankPlan(trace=one.trace, rank=one.rank.number, title=_title(one.rank), index=one.index, clock=clock,
                     origin_ns=origin_ns, tags=_tags(run, one.rank), steps=_steps(one), numbers=numbers,
                     table_metadata=_table_metadata(run))
            for one, clock in zip(read, clocks, strict=True)]


def _tags(run: Run, rank: Rank) -> dict[str, int]:
    return {"rank": rank.number, "mp_size": run.mp_size, "dp_size": run.dp_size}


def _table_metadata(run: Run) -> dict[str, str]:
    return {"distprof.format": str(FORMAT), "distprof.run_id": run.run_id,
            "distprof.world_size": str(run.world_size), "distprof.mp_size": str(run.mp_size),
            "distprof.dp_size": str(run.dp_size), "distprof.topology": json.dumps(run.topology)}


def _title(rank: Rank) -> str:
    return " | ".join(filter(None, (f"rank {rank.number}", rank.place, rank.info.host)))


def _steps(one: Read) -> tuple[Any, Any, Any]:
    """Start, end and number of the steps of a rank: distprof's own, else those that torch.profiler marked."""
    if one.rank.has(STEPS):
        frame = pl.read_parquet(one.rank.folder / STEPS.file, columns=["start_ns", "end_ns", "step"]).sort("start_ns")
        return tuple(frame[column].cast(pl.Int64).to_numpy() for column in ("start_ns", "end_ns", "step"))  # type: ignore[return-value]
    found = sorted((start, end, int(number[1])) for name, start, end in one.index.steps
                   if (number := re.fullmatch(r"ProfilerStep#(\d+)", name)))
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy()


def _metadata(run: Run, read: list[Read], members: list[Member], plans: list[RankPlan]) -> dict[str, Any]:
    """What the viewer shows as trace info: per rank mp, dp, host, offset and counts."""
    each = {
        str(one.rank.number): {
            "mp_size": run.mp_size, "dp_size": run.dp_size, "coordinates": one.rank.info.coordinates,
            "host": one.rank.info.host, "offset_ns": 0, "uncertainty_ns": None, "num_slices": member.num_slices,
            "num_events": member.num_events, "num_overlapping_slices": member.num_side,
            "num_cut_slices": member.num_cut, "kineto": member.metadata,
        }
        for one, member in zip(read, members, strict=True)
    }
    return {"format": FORMAT, "run_id": run.run_id, "world_size": run.world_size, "topology": run.topology,
            "origin_ns": plans[0].origin_ns, "clock": clock_of(run), "missing_ranks": run.missing, "ranks": each}


def _concatenate(output: Path, members: list[Member], metadata: dict[str, Any]) -> None:
    head = b'{"displayTimeUnit":"ms","metadata":' + msgspec.json.encode({"distprof": metadata}) + b',"traceEvents":[\n'
    written = [member for member in members if member.num_events]
    with output.open("wb") as file:
        file.write(igzip.compress(head, mtime=0))
        for index, member in enumerate(written):
            if index:
                file.write(igzip.compress(b",\n", mtime=0))
            with member.path.open("rb") as part:
                shutil.copyfileobj(part, file, 1 << 20)
        file.write(igzip.compress(b"\n]}\n", mtime=0))
