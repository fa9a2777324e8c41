"""The merged Chrome trace: the trace of every rank comes in, one gzipped JSON file and a table a rank go out.

Each rank is read twice: to learn what has to be known of all ranks before the first byte is written, and to write. Each
is a gzip member of its own, made where the rank was read; the file is their concatenation.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from isal import igzip

from distprof.contract import FORMAT, MERGED_EVENTS, TRACE_JSON, TRACE_TAR
from distprof.errors import DataError, UsageError
from distprof.merge.chrome_file import Losses
from distprof.merge.engine import is_compiled
from distprof.merge.index import Index, index_trace
from distprof.merge.options import MergeOptions
from distprof.merge.perfetto_tar import write_tar
from distprof.merge.plans import Plans, Read, plan_ranks
from distprof.merge.rewrite import Member, RankPlan, rewrite
from distprof.merge.run import Rank, Run, clock_of
from distprof.merge.streams import TraceFile
from distprof.units import spans

EVERYTHING = MergeOptions()
TOLD = {
    "num_left_out": "events are left out, as the options say",
    "num_side": "slices overlap others of their thread and stand in a lane beside it",
    "num_cut": "slices that stick out of each other are cut, by 1 us at most where a lane beside them is free",
    "num_hanging": "ends of arrows lie in no slice or lack their other end, and are left out",
    "num_without_duration": "slices have no duration and got 0",
    "num_moved": "events before the common origin were moved onto it",
    "num_repaired": "events were no strict JSON and were repaired",
}
"""Counts of `Member` that are told where they are not 0."""
Progress = Callable[[float], None]
Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTrace:
    """What went into the file."""

    path: Path
    members: list[Member]
    """None where the traces were packed as they are."""
    num_ranks: int
    num_bytes: int
    remarks: list[str]
    """What was left out because the options say so, in words."""

    @property
    def num_slices(self) -> int:
        """Slices of all ranks."""
        return self.total("num_slices")

    def total(self, count: str) -> int:
        """Sum over ranks of a count of `Member`."""
        return sum(getattr(member, count) for member in self.members)


def merge_traces(run: Run, folder: Path, options: MergeOptions = EVERYTHING,
                 progress: Progress = lambda _: None) -> MergedTrace | None:
    """Writes the merged trace of all ranks that have one, and their events as tables; None where none can be read.

    What cannot be read of a trace goes to `run.problems`.

    Args:
        run: Whose ranks are merged.
        folder: Takes in the files.
        options: What goes in and how.
        progress: Is told how much of the work is done, from 0 to 1.

    Raises:
        UsageError: The options ask for ranks or steps that are not there.
    """
    traces = _traces(run, options)
    if not traces:
        return None
    with _executor([trace for _, trace in traces]) as executor:
        read = _read(executor, traces, run.problems, lambda done: progress(0.3 * done))
        if not read:
            return None
        plans = plan_ranks(run, read, options)
        if options.format == "perfetto-tar":
            output = folder / TRACE_TAR
            for plan in plans.ranks:
                run.problems.extend(_damages(plan, plan.index.losses, plan.index.num_events, plan.index.bad_times))
            write_tar(output, plans.ranks, {"distprof.run_id": run.run_id, "distprof.world_size": run.world_size})
            return MergedTrace(path=output, members=[], num_ranks=len(plans.ranks), num_bytes=output.stat().st_size,
                               remarks=plans.remarks)
        output = folder / TRACE_JSON
        members = _write(executor, run, plans, output, lambda done: progress(0.3 + 0.7 * done))
        for plan, member in zip(plans.ranks, members, strict=True):  # the second pass sees more than the first
            run.problems.extend(_damages(plan, member.losses, member.num_read, member.num_bad_times))
    return MergedTrace(path=output, members=members, num_ranks=len(members), num_bytes=output.stat().st_size,
                       remarks=plans.remarks)


def _traces(run: Run, options: MergeOptions) -> list[tuple[Rank, TraceFile]]:
    found = [(rank, rank.trace) for rank in run.ranks if rank.trace is not None]
    if options.ranks is None or not found:
        return found
    chosen = [(rank, trace) for rank, trace in found if rank.number in options.ranks]
    if not chosen:
        raise UsageError(f"expected ranks with a timeline for --ranks, found none in {options.ranks}",
                         hint=f"there are {spans([rank.number for rank, _ in found])}")
    return chosen


def _write(executor: Executor, run: Run, plans: Plans, output: Path, progress: Progress) -> list[Member]:
    tables = output.with_name(MERGED_EVENTS.file)
    tables.mkdir()
    parts = [output.with_name(f".rank{plan.rank}.part") for plan in plans.ranks]
    jobs = [(plan, part, tables / f"rank{plan.rank:05d}.parquet")
            for plan, part in zip(plans.ranks, parts, strict=True)]
    try:
        members = []
        for member, _ in _map(executor, _rewrite, jobs):
            members.append(member)
            progress(len(members) / len(jobs))
        _concatenate(output, members, _metadata(run, plans, members))
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return members


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


def _read(executor: Executor, traces: list[tuple[Rank, TraceFile]], problems: list[str],
          progress: Progress) -> list[Read]:
    found = []
    results = _map(executor, _index, [trace for _, trace in traces])
    for done, ((index, trace), (rank, _)) in enumerate(zip(results, traces, strict=True), 1):
        progress(done / len(traces))
        if isinstance(index, DataError):
            problems.append(f"rank {rank.number} is not in the trace: {index.args[0]}")
            continue
        found.append(Read(rank=rank, trace=trace, index=index))
    return found


def _damages(plan: RankPlan, losses: Losses, num_events: int, num_timeless: int) -> Iterator[str]:
    """What of a rank's trace could not be read, in words."""
    name = f"rank {plan.rank}: {plan.trace.name}"
    if plan.index.damage is not None:
        yield f"{name} {plan.index.damage}"
    if losses.is_cut:
        yield f"{name} ends inside of an event: {losses.lost_bytes} bytes are lost, {num_events} events are whole"
    elif losses.damaged_events:
        yield f"{name} is damaged at {losses.damaged_events} places: {losses.lost_bytes} bytes are lost"
    if num_timeless:
        yield f"{name} has {num_timeless} events with a time that is no number, or without a phase: they are left out"


def _metadata(run: Run, plans: Plans, members: list[Member]) -> dict[str, Any]:
    """What the viewer shows as trace info: per rank mp, dp, host, offset and counts."""
    infos = {rank.number: rank.info for rank in run.ranks}
    each = {
        str(plan.rank): {
            "mp_size": run.mp_size if run.topology_known else None,
            "dp_size": run.dp_size if run.topology_known else None, "coordinates": infos[plan.rank].coordinates,
            "host": infos[plan.rank].host, "offset_ns": plan.clock.offset_ns, "drift_ppm": plan.clock.drift_ppm,
            "uncertainty_ns": run.clock.ranks[plan.rank].uncertainty_ns,
            "num_slices": member.num_slices, "num_events": member.num_events,
            "num_overlapping_slices": member.num_side, "num_cut_slices": member.num_cut,
            "num_hanging_arrow_ends": member.num_hanging, "num_left_out": member.num_left_out,
            "num_slices_without_duration": member.num_without_duration, "num_moved_events": member.num_moved,
            "num_repaired_events": member.num_repaired, "num_events_without_time": member.num_bad_times,
            "kineto": member.metadata,
        }
        for plan, member in zip(plans.ranks, members, strict=True)
    }
    return {"format": FORMAT, "run_id": run.run_id, "world_size": run.world_size,
            "topology": run.topology if run.topology_known else None,
            "origin_ns": plans.origin_ns, "clock": clock_of(run), "missing_ranks": run.missing,
            "left_out": plans.remarks, "ranks": each}


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
