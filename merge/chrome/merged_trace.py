"""The merged Chrome trace: the trace of every rank comes in, one gzipped JSON file and a table a rank go out.

Each rank is read twice: to learn what has to be known of all ranks before the first byte is written, and to write. Each
is a gzip member of its own, made where the rank was read; the file is their concatenation.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
from isal import igzip

from distprof.contract.merged_tables import MERGED_EVENTS
from distprof.contract.paths import FORMAT, TRACE_JSON, TRACE_TAR
from distprof.contract.problems import Problem
from distprof.merge.chrome.drawing import counter_events
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.perfetto_tar import write_tar
from distprof.merge.chrome.rank_plans import Plans, plan_ranks
from distprof.merge.chrome.rank_surveys import Progress, RankSurvey, RankSurveys, losses_of
from distprof.merge.chrome.rank_writer import Member, RankPlan, rewrite
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run

if TYPE_CHECKING:
    import polars as pl

HEAD = b'{"displayTimeUnit":"ms","traceEvents":[\n'
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
    problems: list[Problem]
    """What the second pass found damaged that the first had skimmed over."""

    @property
    def num_slices(self) -> int:
        """Slices of all ranks."""
        return self.total("num_slices")

    def total(self, count: str) -> int:
        """Sum over ranks of a count of `Member`."""
        return sum(getattr(member, count) for member in self.members)


def merge_traces(run: Run, clock: Clock, read: list[RankSurvey], reading: RankSurveys, folder: Path,
                 options: MergeOptions, progress: Progress = lambda _: None, *, collectives: pl.DataFrame | None = None,
                 steps: pl.DataFrame | None = None) -> MergedTrace:
    """Writes the merged trace of ranks, and their events as tables.

    Args:
        run: Whose ranks are merged.
        clock: Of the run.
        read: Ranks with what the first pass learned; not empty.
        reading: The first pass, whose workers do the second.
        folder: Takes in the files.
        options: What goes in and how.
        progress: Is called with the share of the work that is done, from 0 to 1.
        collectives: `MERGED_COLLECTIVES` of the run, to be drawn.
        steps: `STEPS` of the ranks, where they recorded some.

    Raises:
        UsageError: The options ask for steps that are not there, or for a size in which nothing fits.
    """
    plans = plan_ranks(run, clock, read, options, collectives, steps)
    if options.format == "perfetto-tar":
        output = folder / TRACE_TAR
        write_tar(output, plans.ranks, {"distprof.run_id": run.run_id, "distprof.world_size": run.world_size})
        members = []
    else:
        output = folder / TRACE_JSON
        members = _write(reading, run, clock, plans, output, lambda done: progress(0.3 + 0.7 * done))
    return MergedTrace(path=output, members=members, num_ranks=len(plans.ranks), num_bytes=output.stat().st_size,
                       remarks=plans.remarks, problems=list(_found_damaged(plans, members)))


def _found_damaged(plans: Plans, members: list[Member]) -> Iterator[Problem]:
    for plan, member in zip(plans.ranks, members, strict=bool(members)):
        if member.losses.damaged_events > plan.survey.losses.damaged_events:  # the first pass skims
            yield from losses_of(plan.rank, plan.trace, member.losses, member.num_read)


def _write(reading: RankSurveys, run: Run, clock: Clock, plans: Plans, output: Path,
           progress: Progress) -> list[Member]:
    tables = output.with_name(MERGED_EVENTS.file)
    tables.mkdir()
    parts = [output.with_name(f".rank{plan.rank}.part") for plan in plans.ranks]
    jobs = [(plan, part, tables / f"rank{plan.rank:05d}.parquet")
            for plan, part in zip(plans.ranks, parts, strict=True)]
    try:
        members: list[Member] = []
        with output.open("wb") as file:
            file.write(igzip.compress(HEAD, mtime=0))
            for member in reading.map(_rewrite, jobs):
                _append(file, member, is_first=not any(before.num_events for before in members))
                member.path.unlink()
                members.append(member)
                progress(len(members) / len(jobs))
            _append_counters(file, plans, is_first=not any(member.num_events for member in members))
            metadata = msgspec.json.encode({"distprof": _metadata(run, clock, plans, members)})
            file.write(igzip.compress(b'\n],"metadata":' + metadata + b"}\n", mtime=0))
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return members


def _rewrite(job: tuple[RankPlan, Path, Path]) -> Member:
    return rewrite(*job)


def _metadata(run: Run, clock: Clock, plans: Plans, members: list[Member]) -> dict[str, Any]:
    """What the viewer shows as trace info: per rank mp, dp, host, offset and counts."""
    ranks = {rank.number: rank for rank in run.ranks}
    each = {
        str(plan.rank): {
            "mp_size": run.mp_size if run.topology_known else None,
            "dp_size": run.dp_size if run.topology_known else None, "coordinates": ranks[plan.rank].coordinates,
            "host": ranks[plan.rank].host, "offset_ns": plan.clock.offset_ns, "drift_ppm": plan.clock.drift_ppm,
            "uncertainty_ns": clock.ranks[plan.rank].uncertainty_ns,
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
            "origin_ns": plans.origin_ns, "clock": clock.to_json(), "missing_ranks": run.missing,
            "left_out": plans.remarks, "ranks": each}


def _append_counters(file: IO[bytes], plans: Plans, *, is_first: bool) -> None:
    events = [msgspec.json.encode(event) for event in counter_events(plans.counters, plans.counters_pid,
                                                                     plans.origin_ns)]
    if events:
        file.write(igzip.compress((b"" if is_first else b",\n") + b",\n".join(events), mtime=0))


def _append(file: IO[bytes], member: Member, *, is_first: bool) -> None:
    """Copies within the kernel: the parts are as large as the merged trace."""
    if not member.num_events:
        return
    if not is_first:
        file.write(igzip.compress(b",\n", mtime=0))
    file.flush()
    with member.path.open("rb") as part:
        try:
            while os.sendfile(file.fileno(), part.fileno(), None, 1 << 30):
                pass
        except OSError:  # some file systems cannot; what was sent is sent
            file.seek(0, os.SEEK_END)
            shutil.copyfileobj(part, file)
    file.seek(0, os.SEEK_END)
