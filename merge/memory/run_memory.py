"""Allocations of all ranks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from distprof.contract.paths import ENDED_EARLY, MEMORY_JSON
from distprof.contract.problems import MemoryEndedEarly, Problem, Unreadable
from distprof.contract.tables import TENSORS, USES
from distprof.errors import DataError
from distprof.merge.memory.allocations import HELD, SCHEMA, USED, allocations_of
from distprof.merge.memory.peak import Peak, peaks_of
from distprof.merge.operators.timeline.memory_events import MemoryEvents
from distprof.merge.operators.timeline.rank_timeline import RankTimeline, read_timeline
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
    problems: Sequence[Problem]


def run_memory(run: Run) -> RunMemory:
    """Reads the allocations of a run: those of the memory pass, or those of traces of torch.profiler.

    Raises:
        DataError: No rank has any.
    """
    recorded = run.kind != "traces"
    tensors = read_table(run, TENSORS) if recorded else None
    held = tensors.rows if tensors else pl.DataFrame(schema={"rank": pl.Int64(), **HELD, "size_bytes": pl.Int64()})
    used = read_table(run, USES) if recorded else None
    uses = used.rows if used else pl.DataFrame(schema={"rank": pl.Int64(), **USED})
    problems: list[Problem] = [*(tensors.problems if tensors else ()), *(used.problems if used else ())]
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
        early = ended_early(rank.number, timeline)
        problems += [early] if early is not None else []
        rows, found = allocations_of(rank.number, timeline, events, held.filter(rank=rank.number),
                                     uses.filter(rank=rank.number), whole=early is None)
        parts.append(rows)
        peaks += peaks_of(rank.number, rows, found)
        num_bad += events.num_bad
    if not peaks:
        raise DataError(f"no allocations in {run.path}",
                        hint="record them with --steps memory=1" if recorded else
                        "use torch.profiler with profile_memory=True")
    return RunMemory(rows=pl.concat([pl.DataFrame(schema=SCHEMA), *parts]), peaks=peaks, held=_at_the_start(held),
                     num_bad=num_bad, problems=problems)


def ended_early(rank: int, timeline: RankTimeline) -> MemoryEndedEarly | None:
    """What the recording says where it ended before its last step; None where it did not."""
    ours = timeline.metadata.get("distprof")
    found = ours.get(ENDED_EARLY) if isinstance(ours, dict) else None
    if not isinstance(found, dict):
        return None
    step, taken, most = (found.get(key) for key in ("step", "taken_bytes", "most_bytes"))
    numbers = [value if isinstance(value, int) else 0 for value in (step, taken, most)]
    return MemoryEndedEarly(rank=rank, step=numbers[0], taken_bytes=numbers[1], most_bytes=numbers[2])


def _of_the_pass(rank: Rank) -> Rank:
    """The same rank with the timeline of its memory pass."""
    path = rank.folder / MEMORY_JSON
    return replace(rank, trace=TraceFile(path=path) if path.is_file() else None)


def _at_the_start(held: pl.DataFrame) -> pl.DataFrame:
    """What was held before the first step of the pass, each storage once."""
    first = held.filter(pl.col("time_ns") == pl.col("time_ns").min().over("rank"))
    return first.unique(["rank", "device", "address"], keep="first", maintain_order=True).group_by(
        "rank", "device", "category", maintain_order=True).agg(pl.col("size_bytes").sum())
