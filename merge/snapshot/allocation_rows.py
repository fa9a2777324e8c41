"""Allocations of a device of a rank: added up, the largest at the peak, or all of them as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Array, Flags
from distprof.merge.snapshot.lifetimes import Lifetimes
from distprof.merge.snapshot.snapshot_file import Snapshot

SCHEMA = {"rank": pl.Int64(), "device": pl.Int64(), "address": pl.Int64(), "size_bytes": pl.Int64(),
          "made_us": pl.Int64(), "freed_us": pl.Int64(), "stream": pl.Int64(), "line": pl.String(),
          "stack": pl.String(), "is_at_peak": pl.Boolean(), "is_alive": pl.Boolean()}
"""A row per allocation; `made_us` is null where it is older than the history, `freed_us` where it was never freed, or
nothing says when. `stack` has a line a frame, innermost first."""
KEYS = {name: SCHEMA[name] for name in ("rank", "device", "stream", "line", "stack")}
NUMBERS = ("peak_bytes", "peak_tensors", "largest_bytes", "allocated_bytes", "allocations", "alive_bytes")
"""Columns of `sums`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """Those of one device."""

    snapshot: Snapshot
    rank: int
    device: int
    history: Array
    lives: Lifetimes
    at: int
    """Number of the entry of the peak."""
    lines: Sequence[str | None]
    """Of each stack."""

    @property
    def is_at_peak(self) -> Flags:
        """bool an allocation."""
        return (self.lives.first <= self.at) & (self.lives.last > self.at)

    @property
    def num_at_peak(self) -> int:
        """How many were alive then."""
        return int(np.count_nonzero(self.is_at_peak))

    def sums(self) -> pl.DataFrame:
        """`KEYS` and `NUMBERS`: a row for each stack and stream that made any."""
        lives, num_streams = self.lives, max(len(self.snapshot.streams), 1)
        keys, place = np.unique(lives.stack.astype(np.int64) * num_streams + lives.stream, return_inverse=True)
        at_peak, alive = self.is_at_peak, lives.last == lives.after
        found = {name: np.zeros(len(keys), np.int64) for name in NUMBERS}
        for name, chosen in (("peak_bytes", at_peak), ("allocated_bytes", slice(None)), ("alive_bytes", alive)):
            np.add.at(found[name], place[chosen], lives.size[chosen])
        np.maximum.at(found["largest_bytes"], place[at_peak], lives.size[at_peak])
        found["peak_tensors"] = np.bincount(place[at_peak], minlength=len(keys))
        found["allocations"] = np.bincount(place, minlength=len(keys))
        return pl.DataFrame(self._keys(keys // num_streams, keys % num_streams) | found, schema_overrides=KEYS)

    def largest(self, top: int) -> pl.DataFrame:
        """`SCHEMA` of the largest at the peak."""
        rows = np.flatnonzero(self.is_at_peak)
        order = np.lexsort((self.lives.first[rows], -self.lives.size[rows]))
        return self.frame(rows[order[:top]])

    def frame(self, rows: Any = None) -> pl.DataFrame:
        """`SCHEMA` of these allocations, or of all."""
        rows, lives = slice(None) if rows is None else rows, self.lives
        first, last, end = lives.first[rows], lives.last[rows], len(self.history)
        time = np.append(self.history["time_us"], -1)  # the last one stands for times that are not known
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
