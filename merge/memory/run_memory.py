"""Allocations of all ranks of a run, and the peak of each device with what was alive then."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from distprof.contract.paths import ENDED_EARLY, MEMORY_JSON
from distprof.contract.problems import MemoryEndedEarly, Problem, Unreadable
from distprof.contract.tables import TENSORS, USES
from distprof.errors import DataError, UsageError
from distprof.merge.memory.allocations import HELD, SCHEMA, USED, allocations_of
from distprof.merge.operators.timeline.memory_events import MemoryEvents
from distprof.merge.operators.timeline.rank_timeline import RankTimeline, read_timeline
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import read_table
from distprof.units import spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The time at which the most was allocated on a device."""

    rank: int
    device: str
    time_ns: int
    peak_bytes: int
    """By the allocator's count. On a CPU, the sum of the recorded allocations: earlier ones are unknown, and torch's
    count never drops what threads without a profiler free."""
    before_bytes: int | None
    """Bytes allocated before the recording and not freed by then; None on a CPU."""
    unknown_bytes: int
    """What torch counted in addition to all that is known; on a CPU it is not in `peak_bytes`."""
    reserved_bytes: int | None
    """Device memory held by the allocator then; None if not recorded."""
    alive: pl.DataFrame
    """Rows of `allocations_of` that were alive then, largest first."""
    unused_bytes: int | None
    """Bytes of those that no operator used any more, although they were freed only later; None if uses are unknown."""


def peaks_of(rank: int, allocations: pl.DataFrame, events: pl.DataFrame) -> list[Peak]:
    """Returns one peak per device with allocations."""
    return [_peak(rank, device, allocations.filter(pl.col("device") == device), events.filter(device=device))
            for device in events["device"].unique().sort().to_list()]


def _peak(rank: int, device: str, allocations: pl.DataFrame, events: pl.DataFrame) -> Peak:
    events = events.with_columns(_changes(events)).with_columns(pl.col("seen", "old").cum_sum())
    counted = events["allocated"].null_count() == 0
    on_device = device != "cpu" and counted
    at = events.row(int(events["allocated" if on_device else "seen"].arg_max() or 0), named=True)
    used = allocations["last_used_ns"].null_count() < len(allocations)
    alive = allocations.filter(pl.col("first") <= at["number"],
                               pl.col("last").is_null() | (pl.col("last") > at["number"]))
    known = int(alive["size_bytes"].sum())
    before = events["allocated"][0] - events["bytes"][0] + at["old"] if counted else 0
    return Peak(rank=rank, device=device, time_ns=at["time_ns"], peak_bytes=at["allocated"] if on_device else known,
                before_bytes=before if on_device else None,
                unknown_bytes=at["allocated"] - before - known if counted else 0,
                reserved_bytes=at["reserved"] or None,
                unused_bytes=int(alive.filter(unused_at(at["time_ns"]))["size_bytes"].sum()) if used else None,
                alive=alive.sort("size_bytes", "first", descending=[True, False]))


def unused_at(time_ns: int) -> pl.Expr:
    """Selects allocations whose last use was earlier and that were freed later."""
    return (pl.col("last_used_ns") < time_ns) & pl.col("freed_ns").is_not_null()


def allocated_after(device: str, events: pl.DataFrame) -> pl.DataFrame:
    """Adds to a device's events what was allocated `after` each: by the allocator's count; on a CPU, since the start of
    the recording, as in `Peak`.
    """
    seen = events.with_columns(_changes(events)).with_columns(after=pl.col("seen").cum_sum())
    is_counted = device != "cpu" and events["allocated"].null_count() == 0
    return seen.with_columns(after="allocated") if is_counted else seen


def _changes(events: pl.DataFrame) -> list[pl.Expr]:
    """Returns by how much each event changes the live bytes of the recording (`seen`) and older ones (`old`)."""
    size = pl.col("bytes")
    alive = pl.when(size > 0).then(size).otherwise(0).shift(1, fill_value=0).over("address")
    # an allocation at the address of another one: its free was missed
    return [pl.when(size > 0).then(size - alive).when(alive > 0).then(size).otherwise(0).alias("seen"),
            pl.when((size < 0) & (alive == 0)).then(size).otherwise(0).alias("old")]


BY = {"category": "category", "module": "module_path", "class": "class_name", "op": "op", "phase": "phase",
      "rank": "rank", "device": "device"}
"""Values of `--by` -> column."""
NUMBERS = ("peak_bytes", "peak_tensors", "largest_bytes", "unused_bytes", "allocated_bytes", "allocations",
           "kept_bytes", "unused_byte_s")
"""Columns of `grouped` after those of `--by`."""


def grouped(rows: pl.DataFrame, peaks: Sequence[Peak], by: Sequence[str]) -> pl.DataFrame:
    """Sums allocations over the ranks.

    Args:
        rows: Rows of `allocations_of`.
        peaks: Peaks of the same ranks.
        by: Keys of `BY`.

    Returns:
        The columns of `by`; of allocations alive at the peak of their device: `peak_bytes`, `peak_tensors`,
            `largest_bytes` of one of them, and `unused_bytes` of those that were not used any more; of the whole
            recording: `allocated_bytes`, `allocations`, `kept_bytes` of what forward made and backward needed, and
            `unused_byte_s`, the sum of bytes times seconds from last use to release. Largest at the peak first.

    Raises:
        UsageError: `by` has another key.
    """
    keys = [_column(one) for one in dict.fromkeys(by)]
    size = pl.col("size_bytes")
    unused = [peak.alive.with_columns(is_unused=unused_at(peak.time_ns)) for peak in peaks]
    alive = pl.concat([pl.DataFrame(schema=SCHEMA | {"is_unused": pl.Boolean()}), *unused])
    at_peak = alive.group_by(keys).agg(peak_bytes=size.sum(), peak_tensors=pl.len().cast(pl.Int64),
                                       largest_bytes=size.max(), unused_bytes=size.filter("is_unused").sum())
    made = rows.group_by(keys, maintain_order=True).agg(
        allocated_bytes=size.sum(), allocations=pl.len().cast(pl.Int64),
        kept_bytes=size.filter(pl.col("category") == "activation").sum(),
        unused_byte_s=(size * (pl.col("unused_ns") / 1e9)).sum())
    both = made.join(at_peak, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return both.select(*keys, *(pl.col(name).fill_null(0) for name in NUMBERS)).sort(
        "peak_bytes", "allocated_bytes", descending=True, maintain_order=True)


def longest_unused(rows: pl.DataFrame, top: int | None) -> pl.DataFrame:
    """Returns allocations by size times the time from last use to release; the `top` ones, or all."""
    kept = rows.filter(pl.col("unused_ns") > 0).with_columns(
        unused_byte_s=pl.col("size_bytes") * (pl.col("unused_ns") / 1e9))
    found = kept.sort("unused_byte_s", "made_ns", descending=[True, False]).drop("first", "last")
    return found if top is None else found.head(top)


def _column(key: str) -> str:
    if key not in BY:
        near = difflib.get_close_matches(key, BY, n=1)
        raise UsageError(f"unknown value {key!r} for --by; choose from {', '.join(BY)}",
                         hint=f"--by {near[0]}" if near else None)
    return BY[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """The allocations of a run."""

    rows: pl.DataFrame
    """`allocations_of` of all ranks."""
    peaks: Sequence[Peak]
    """One per rank and device."""
    held: pl.DataFrame
    """What each rank held when the recording began: rank, device, category, size_bytes."""
    num_bad: int
    """Events without a size or address, which were left out."""
    problems: Sequence[Problem]

    def of_ranks(self, ranks: Sequence[int]) -> RunMemory:
        """Returns the part of some ranks; everything if none are given.

        Raises:
            UsageError: A rank has no allocations.
        """
        known = sorted({peak.rank for peak in self.peaks})
        for rank in ranks:
            if rank not in known:
                raise UsageError(f"rank {rank} has no allocations; --rank can be {spans(known)}")
        if not ranks:
            return self
        wanted = pl.col("rank").is_in(ranks)
        return replace(self, peaks=[peak for peak in self.peaks if peak.rank in ranks], rows=self.rows.filter(wanted),
                       held=self.held.filter(wanted))


def run_memory(run: Run) -> RunMemory:
    """Reads the allocations of a run: from the memory pass, or from traces of torch.profiler.

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
        source = rank.with_timeline(MEMORY_JSON) if recorded else rank
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
    """Returns what a recording says that ended before its last step; None if it did not."""
    ours = timeline.metadata.get("distprof")
    found = ours.get(ENDED_EARLY) if isinstance(ours, dict) else None
    if not isinstance(found, dict):
        return None
    step, taken, most = (found.get(key) for key in ("step", "taken_bytes", "most_bytes"))
    numbers = [value if isinstance(value, int) else 0 for value in (step, taken, most)]
    return MemoryEndedEarly(rank=rank, step=numbers[0], taken_bytes=numbers[1], most_bytes=numbers[2])


def _at_the_start(held: pl.DataFrame) -> pl.DataFrame:
    """Returns what was held before the first step of the pass, each storage once."""
    first = held.filter(pl.col("time_ns") == pl.col("time_ns").min().over("rank"))
    return first.unique(["rank", "device", "address"], keep="first", maintain_order=True).group_by(
        "rank", "device", "category", maintain_order=True).agg(pl.col("size_bytes").sum())
