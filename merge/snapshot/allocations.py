"""Allocations of a device: when each was made and freed, from the history and the blocks at its end, and their sums.

Histories have millions of entries, so columns are as narrow as possible, and none is kept longer than needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Array, Flags, Integers
from distprof.merge.snapshot.snapshot_file import ENTRY, NUMBERS, STATES, Snapshot

BEFORE = -1
"""Instead of an entry's number: before the history began."""
ALLOCATED = STATES.index("active_allocated")
FREES = [NUMBERS[name] for name in ("free_requested", "free_completed", "free")]
NO_HISTORY = np.zeros(0, ENTRY)
SCHEMA = {"rank": pl.Int64(), "device": pl.Int64(), "address": pl.Int64(), "size_bytes": pl.Int64(),
          "made_us": pl.Int64(), "freed_us": pl.Int64(), "stream": pl.Int64(), "line": pl.String(),
          "stack": pl.String(), "is_at_peak": pl.Boolean(), "is_alive": pl.Boolean()}
"""One row per allocation. `made_us` is null if it is older than the history; `freed_us` if it was never freed, or if
the time is unknown. `stack` has one line per frame, innermost first."""
KEYS = {name: SCHEMA[name] for name in ("rank", "device", "stream", "line", "stack")}
SUMS = ("peak_bytes", "peak_tensors", "largest_bytes", "allocated_bytes", "allocations", "alive_bytes")
"""Columns of `sums`, besides `KEYS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Allocations of a device as columns of the same length, and the bytes allocated after each history entry."""

    address: Integers
    size: Integers
    """Requested bytes, before the allocator rounds them up."""
    stack: Array
    """Number of the stack that made it; 0 if unknown."""
    stream: Array
    first: Array
    """Number of the entry that made it, or `BEFORE`."""
    last: Array
    """Number of the entry that freed it; `after` if it is alive, `after` - 1 if it was freed at an unknown time."""
    after: int
    before_bytes: int
    """Bytes allocated when the history began."""
    allocated: Integers
    """Bytes allocated after each entry."""
    num_unseen: int
    """Allocations that were freed without an entry in the history."""


def lifetimes_of(snapshot: Snapshot, device: int) -> Lifetimes:
    """Pairs each allocation with the free at the same address."""
    history = snapshot.histories.get(device, NO_HISTORY)
    action, where, size = history["action"], history["address"], history["size"]
    rows = _made_and_freed(history)
    made, (same, begins) = action[rows] == NUMBERS["alloc"], _neighbours(where[rows])
    unseen, after = int(np.count_nonzero(made & same & np.roll(made, -1))), len(history) + 1
    known, early, left = rows[made], rows[~made & begins], where[rows[made & ~same]]
    last = np.where(same, np.roll(rows, -1), after)[made]
    del made, same, begins
    alive = _alive(snapshot, device)
    last[np.flatnonzero(last == after)[~np.isin(left, alive[:, 0])]] = after - 1
    old = alive[~np.isin(alive[:, 0], left)]
    unseen += int(np.count_nonzero(last == after - 1) + np.count_nonzero(np.isin(old[:, 0], where[rows])))
    del rows
    before = np.full(len(old) + len(early), BEFORE, known.dtype)
    before_bytes = int(old[:, 1].sum() + size[early].sum())
    return Lifetimes(
        allocated=_allocated(size, known, last, early, before_bytes),
        address=np.concatenate([old[:, 0], where[early], where[known]]),
        size=np.concatenate([old[:, 1], size[early], size[known]]),
        stack=np.concatenate([old[:, 2].astype(np.uint32), np.zeros(len(early), np.uint32), history["stack"][known]]),
        stream=np.concatenate([old[:, 3].astype(np.uint16), history["stream"][early], history["stream"][known]]),
        first=np.concatenate([before, known]), after=after, before_bytes=before_bytes, num_unseen=unseen,
        last=np.concatenate([np.full(len(old), after, known.dtype), early, last]))


def _allocated(size: Integers, known: Array, last: Array, early: Array, before_bytes: int) -> Integers:
    found = np.zeros(len(size), np.int64)
    found[known] = size[known]
    found[early] = -size[early]
    freed = last < len(size)
    np.subtract.at(found, last[freed], size[known[freed]])
    if len(found):
        found[0] += before_bytes
    return np.cumsum(found, out=found)


def _neighbours(address: Integers) -> tuple[Flags, Flags]:
    """Returns where the next address is the same, and where the previous one differs."""
    same, begins = np.zeros(len(address), bool), np.ones(len(address), bool)
    same[:-1] = address[1:] == address[:-1]
    begins[1:] = ~same[:-1]
    return same, begins


def _made_and_freed(history: Array) -> Any:
    """Returns the numbers of entries that allocate or free, sorted by address and then by order in the history."""
    action = history["action"]
    rows = np.flatnonzero((action == NUMBERS["alloc"]) | np.isin(action, FREES))
    rows = rows.astype(np.int32 if len(history) < 1 << 31 else np.int64)
    rows = rows[np.argsort(history["address"][rows], kind="stable")]
    freed, (same, begins) = np.isin(action[rows], FREES), _neighbours(history["address"][rows])
    # the second half of a free; the first may be before the history
    again = np.roll(freed & same, 1) & freed
    halves = bool(np.any(action == NUMBERS["free_requested"]))
    alone = begins & (action[rows] == NUMBERS["free_completed"]) & halves
    return rows[~again & ~alone]


def _alive(snapshot: Snapshot, device: int) -> Integers:
    """Returns address, size, stack and stream of what is allocated at the end."""
    blocks = snapshot.blocks
    of = snapshot.segments[blocks[:, 5]] if len(blocks) else np.zeros((0, 5), np.int64)
    mine = (of[:, 0] == device) & (blocks[:, 3] == ALLOCATED)
    return np.column_stack([blocks[mine, 0], blocks[mine, 2], blocks[mine, 4], of[mine, 3]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """The allocations of one device."""

    snapshot: Snapshot
    rank: int
    device: int
    history: Array
    lives: Lifetimes
    at: int
    """Number of the entry at the peak, or `BEFORE`."""
    lines: Sequence[str | None]
    """Line of the user's code for each stack, as `CallStacks.lines`."""

    @property
    def is_at_peak(self) -> Flags:
        """Whether each allocation is alive at the peak."""
        return (self.lives.first <= self.at) & (self.lives.last > self.at)

    @property
    def num_at_peak(self) -> int:
        """Number of allocations alive at the peak."""
        return int(np.count_nonzero(self.is_at_peak))

    def sums(self) -> pl.DataFrame:
        """Returns `KEYS` and `SUMS`: one row per combination of stack and stream."""
        lives, num_streams = self.lives, max(len(self.snapshot.streams), 1)
        keys, place = np.unique(lives.stack.astype(np.int64) * num_streams + lives.stream, return_inverse=True)
        at_peak, alive = self.is_at_peak, lives.last == lives.after
        found = {name: np.zeros(len(keys), np.int64) for name in SUMS}
        for name, chosen in (("peak_bytes", at_peak), ("allocated_bytes", slice(None)), ("alive_bytes", alive)):
            np.add.at(found[name], place[chosen], lives.size[chosen])
        np.maximum.at(found["largest_bytes"], place[at_peak], lives.size[at_peak])
        found["peak_tensors"] = np.bincount(place[at_peak], minlength=len(keys))
        found["allocations"] = np.bincount(place, minlength=len(keys))
        return pl.DataFrame(self._keys(keys // num_streams, keys % num_streams) | found, schema_overrides=KEYS)

    def largest(self, top: int) -> pl.DataFrame:
        """Returns the `SCHEMA` of the largest allocations at the peak."""
        rows = np.flatnonzero(self.is_at_peak)
        order = np.lexsort((self.lives.first[rows], -self.lives.size[rows]))
        return self.frame(rows[order[:top]])

    def frame(self, rows: Any = None) -> pl.DataFrame:
        """Returns the `SCHEMA` of these allocations, or of all."""
        rows, lives = slice(None) if rows is None else rows, self.lives
        first, last, end = lives.first[rows], lives.last[rows], len(self.history)
        time = np.append(self.history["time_us"], -1)  # the last value stands for unknown times
        found = self._keys(lives.stack[rows], lives.stream[rows]) | {
            "address": lives.address[rows], "size_bytes": lives.size[rows],
            "made_us": time[np.where(first >= 0, first, end)], "freed_us": time[np.minimum(last, end)],
            "is_at_peak": self.is_at_peak[rows], "is_alive": last == lives.after}
        return pl.DataFrame(found, schema_overrides=KEYS).with_columns(
            pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name)
            for name in ("made_us", "freed_us")).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())

    def _keys(self, stack: Array, stream: Array) -> dict[str, Any]:
        known = np.unique(stack)
        texts = pl.Series("stack", [self._stack(number) for number in known.tolist()], pl.String)
        lines = pl.Series("line", [self.lines[number] for number in known.tolist()], pl.String)
        place = np.searchsorted(known, stack)
        streams = np.array(self.snapshot.streams, np.int64)
        return {"rank": np.full(len(stack), self.rank), "device": np.full(len(stack), self.device),
                "stream": streams[stream] if len(streams) else stream, "line": lines.gather(place),
                "stack": texts.gather(place)}

    def _stack(self, number: int) -> str | None:
        return "\n".join(f"{file}:{line} {name}" for file, line, name in self.snapshot.stacks.of(number)) or None
