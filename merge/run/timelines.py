"""The timeline of a rank: that of the trace pass, else that of the memory pass; and what is lost of it, as problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from distprof.contract.passes import MEMORY, TRACE
from distprof.contract.paths import MEMORY_JSON
from distprof.contract.problems import TraceDamaged
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.scan.chrome_file import Losses
from distprof.merge.scan.gunzip import Damage
from distprof.merge.scan.trace_file import TraceFile

if TYPE_CHECKING:
    import polars as pl  # a merge does not need it before its first pass


def with_timelines(run: Run) -> Run:
    """The run, where ranks that have no other timeline have the one with allocations."""
    return replace(run, ranks=[rank if timeline_pass(rank) == TRACE else _of_memory(rank) for rank in run.ranks])


def timeline_pass(rank: Rank) -> str:
    """The pass that recorded the timeline of a rank of `with_timelines`."""
    is_memory = rank.recorded is not None and (rank.trace is None or rank.trace.path.name == MEMORY_JSON)
    return MEMORY if is_memory else TRACE


def steps_of_timeline(steps: pl.DataFrame, rank: Rank) -> pl.DataFrame:
    """Rows of `STEPS` that the timeline of a rank covers."""
    return steps.filter((steps["pass"] == timeline_pass(rank)) & (steps["rank"] == rank.number))


def _of_memory(rank: Rank) -> Rank:
    path = rank.folder / MEMORY_JSON
    return replace(rank, trace=TraceFile(path=path)) if path.is_file() else rank


def damages_of(rank: int, trace: TraceFile, damage: Damage | None, losses: Losses, num_events: int,
               num_overlong: int = 0, num_untimed: int = 0) -> Iterator[TraceDamaged]:
    """What is lost of the file and of its text, once it was read to its end; how many durations were cut, and how many
    slices of devices have no times."""
    if num_untimed:
        yield TraceDamaged(rank=rank, file=trace.name, what="times", num_events=num_untimed)
    if num_overlong:
        yield TraceDamaged(rank=rank, file=trace.name, what="durations", num_events=num_overlong)
    if damage is not None:
        yield TraceDamaged(rank=rank, file=trace.name, what="container", detail=str(damage))
    yield from losses_of(rank, trace, losses, num_events)


def losses_of(rank: int, trace: TraceFile, losses: Losses, num_events: int) -> Iterator[TraceDamaged]:
    """What is lost of the text of a trace."""
    if losses.is_cut:
        yield TraceDamaged(rank=rank, file=trace.name, what="end", lost_bytes=losses.lost_bytes + losses.lost_key_bytes,
                           num_events=num_events)
    elif losses.damaged_events:
        yield TraceDamaged(rank=rank, file=trace.name, what="places", places=losses.damaged_events,
                           lost_bytes=losses.lost_bytes)
    if losses.damaged_keys or (losses.lost_key_bytes and not losses.is_cut):
        yield TraceDamaged(rank=rank, file=trace.name, what="keys", lost_bytes=losses.lost_key_bytes,
                           detail=", ".join(losses.damaged_keys))
