"""The memory of one device of a rank: its peak, what was alive then, and how reserved memory is divided at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Array, Integers
from distprof.merge.snapshot.allocations import ALLOCATED, BEFORE, NO_HISTORY, Allocations, lifetimes_of
from distprof.merge.snapshot.snapshot_file import NUMBERS, STATES, Snapshot

INACTIVE = STATES.index("inactive")
MORE = [NUMBERS[name] for name in ("segment_alloc", "segment_map")]
LESS = [NUMBERS[name] for name in ("segment_free", "segment_unmap")]
POINTS = 200
"""Maximum number of points of a timeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How the reserved memory is divided at the time of the snapshot."""

    reserved_bytes: int
    allocated_bytes: int
    """In blocks used by tensors, as rounded up by the allocator."""
    requested_bytes: int
    """Requested bytes of these blocks."""
    waiting_bytes: int
    """Freed, but still used by another stream."""
    split_bytes: int
    """Free next to used blocks: neither another allocator nor a large tensor can use it."""
    releasable_bytes: int
    """In free segments, which `empty_cache` releases."""
    largest_free_bytes: int
    """Size of the largest free block, which can be allocated without asking the device for more."""
    segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """A failed request."""

    time_us: int | None
    asked_bytes: int
    device_free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    line: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """What a snapshot shows of a device. Bytes are requested bytes unless stated otherwise."""

    rank: int
    device: int
    peak_bytes: int
    peak_us: int | None
    """None if the peak was at the start of the history, or the history has no times."""
    peak_reserved_bytes: int
    before_bytes: int
    """Bytes allocated when the history began."""
    entries: int
    """Number of entries of the history."""
    unseen: int
    """Allocations whose free is missing in the history: the peak may be too high."""
    division: Division
    failures: Sequence[OutOfMemory]
    timeline: pl.DataFrame
    """time_us, allocated_bytes (the maximum until the next point) and reserved_bytes."""


def device_memory(snapshot: Snapshot, rank: int, device: int) -> tuple[DeviceMemory, Allocations]:
    """Analyses a device; returns its memory and its allocations."""
    lives, history = lifetimes_of(snapshot, device), snapshot.histories.get(device, NO_HISTORY)
    division = _division(snapshot, device)
    reserved, allocated = _Reserved(history, division.reserved_bytes), lives.allocated
    at = int(np.argmax(allocated)) if len(allocated) and allocated.max() > lives.before_bytes else BEFORE
    lines = snapshot.stacks.lines
    memory = DeviceMemory(
        rank=rank, device=device, peak_bytes=int(allocated[at]) if at >= 0 else lives.before_bytes,
        peak_us=_time(history, at) if at >= 0 else None, peak_reserved_bytes=int(reserved.after(at)),
        before_bytes=lives.before_bytes, entries=len(history), unseen=lives.num_unseen, division=division,
        failures=[_failure(history, number, allocated, reserved, lines)
                  for number in np.flatnonzero(history["action"] == NUMBERS["oom"]).tolist()],
        timeline=_timeline(history, allocated, reserved))
    return memory, Allocations(snapshot=snapshot, rank=rank, device=device, history=history, lives=lives, at=at,
                               lines=lines)


class _Reserved:
    """Bytes of device memory that the allocator held after each entry."""

    def __init__(self, history: Array, now_bytes: int) -> None:
        action = history["action"]
        self._at = np.flatnonzero(np.isin(action, [*MORE, *LESS]))
        size = history["size"][self._at]
        total = np.cumsum(np.where(np.isin(action[self._at], MORE), size, -size))
        before = now_bytes - (int(total[-1]) if len(total) else 0)
        self._after = np.concatenate([[before], before + total])

    def after(self, entry: Any) -> Any:
        """Returns the bytes after one entry, or several."""
        return self._after[np.searchsorted(self._at, entry, "right")]


def _time(history: Array, number: int) -> int | None:
    time_us = int(history["time_us"][number])
    return time_us if time_us >= 0 else None


def _division(snapshot: Snapshot, device: int) -> Division:
    mine = snapshot.segments[:, 0] == device
    blocks = snapshot.blocks[mine[snapshot.blocks[:, 5]]]
    size, state, segment = blocks[:, 1], blocks[:, 3], blocks[:, 5]
    free, used = state == INACTIVE, state == ALLOCATED
    shared = np.bincount(segment, minlength=len(mine))[segment] > 1
    return Division(
        reserved_bytes=int(snapshot.segments[mine, 2].sum()), allocated_bytes=int(size[used].sum()),
        requested_bytes=int(blocks[used, 2].sum()), waiting_bytes=int(size[~free & ~used].sum()),
        split_bytes=int(size[free & shared].sum()), releasable_bytes=int(size[free & ~shared].sum()),
        largest_free_bytes=int(size[free].max(initial=0)), segments=int(np.count_nonzero(mine)))


def _failure(history: Array, number: int, allocated: Integers, reserved: _Reserved,
             lines: Sequence[str | None]) -> OutOfMemory:
    return OutOfMemory(time_us=_time(history, number), asked_bytes=int(history["size"][number]),
                       device_free_bytes=int(history["address"][number]), allocated_bytes=int(allocated[number]),
                       reserved_bytes=int(reserved.after(number)), line=lines[int(history["stack"][number])])


def _timeline(history: Array, allocated: Integers, reserved: _Reserved) -> pl.DataFrame:
    """Divides the time into `POINTS` intervals; returns one point for each in which something happened."""
    time = np.maximum.accumulate(history["time_us"])
    if not len(time) or history["time_us"].min() < 0:  # torch before 2.1 wrote no times
        return pl.DataFrame(schema={"time_us": pl.Int64, "allocated_bytes": pl.Int64, "reserved_bytes": pl.Int64})
    width = max(-(-int(time[-1] - time[0] + 1) // POINTS), 1)
    begins = time[0] + width * np.arange(POINTS)
    starts = np.searchsorted(time, begins)
    filled = np.flatnonzero(starts < np.append(starts[1:], len(time)))
    starts = starts[filled]
    ends = np.append(starts[1:], len(time)) - 1
    held = np.maximum(reserved.after(starts), reserved.after(ends))
    return pl.DataFrame({"time_us": begins[filled], "allocated_bytes": np.maximum.reduceat(allocated, starts),
                         "reserved_bytes": held})
