"""Counts of what was done with the events of a rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from distprof.merge.scan.chrome_file import Losses

SENTENCES = {
    "num_left_out": "events are left out, as the options say",
    "num_side": "slices overlap others of their thread and stand in a lane beside it",
    "num_cut": "slices that stick out of each other are cut, by 1 us at most where a lane beside them is free",
    "num_hanging": "ends of arrows lie in no slice or lack their other end, and are left out",
    "num_without_duration": "slices have no duration and got 0",
    "num_moved": "events before the common origin were moved onto it",
    "num_repaired": "events were no strict JSON and were repaired",
}
"""What `distprof merge` prints behind a count that is not 0."""


@dataclass(slots=True, kw_only=True)
class RankCounts:
    """How many events of a rank were read, written, changed and left out."""

    rank: int
    num_slices: int = 0
    num_events: int = 0
    num_read: int = 0
    """Events of the rank's own trace, metadata included."""
    num_bytes: int = 0
    """Text of it, decompressed."""
    num_moved: int = 0
    """Events before the origin, moved onto it."""
    num_side: int = 0
    """Slices that partly overlap another one of their thread, and stand in a lane beside it."""
    num_cut: int = 0
    """Slices whose end was cut, by a microsecond at most where there was room beside them."""
    num_left_out: int = 0
    """Events that the selection left out."""
    num_hanging: int = 0
    """Ends of arrows left out: they lie in no slice, or lack their other end."""
    num_bad_times: int = 0
    """Events without a time or a phase, left out."""
    num_without_duration: int = 0
    """Slices without a duration, which got 0."""
    losses: Losses = field(default_factory=Losses)
    metadata: dict[str, Any] = field(default_factory=dict)
    """Top-level keys of the rank's file except the events."""

    @property
    def num_repaired(self) -> int:
        """Events that were no strict JSON."""
        return self.losses.repaired_events
