"""Reads allocations and frees from a timeline (`profile_memory=True`), and sums their bytes in each slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, RankTimeline
from distprof.merge.scan.engine import Scanner
from distprof.merge.scan.scanned_columns import NONE

MEMORY, OUT_OF_MEMORY = "[memory]", "[OutOfMemory]"
HOSTS, META = (0, 2, 5), 14
"""torch's numbers of device types: those whose memory is that of the host, and the one without memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChanges:
    """Changes of memory, and failed allocations; each array has a value per event."""

    time_ns: Integers
    """On the clock of the timeline."""
    thread: Integers
    num_bytes: Integers
    """Negative if memory was freed."""
    device_type: Integers
    is_change: Flags
    """False if an allocation failed."""


class ChangesRead:
    """Collects changes of memory while a timeline is read."""

    keys = ("Bytes", "Device Type")

    def __init__(self) -> None:
        self._parts: list[Any] = [np.empty((5, 0), np.int64)]

    def take(self, scanner: Scanner) -> None:
        """Adds the changes in the last scan."""
        times = scanner.column("ts_ns")
        names = {text: number for number, text in enumerate(scanner.names.texts())}
        for name in (MEMORY, OUT_OF_MEMORY):
            number = names.get(name.encode())
            if number is None:
                continue
            num_bytes = scanner.integers["Bytes"][:len(times)]
            rows = np.flatnonzero((scanner.column("name") == number) & (times != NONE) & (num_bytes != NONE))
            self._parts.append(np.stack([times[rows], scanner.column("thread")[rows], num_bytes[rows],
                                         scanner.integers["Device Type"][rows], np.full(len(rows), name == MEMORY)]))

    def changes(self, base_ns: int) -> MemoryChanges:
        """Returns all changes; `base_ns` is that of the timeline."""
        time_ns, thread, num_bytes, device_type, is_change = np.concatenate(self._parts, axis=1)
        return MemoryChanges(time_ns=time_ns + base_ns, thread=thread, num_bytes=num_bytes, device_type=device_type,
                             is_change=is_change.astype(bool))


def changes_within(timeline: RankTimeline, nesting: Nesting, changes: MemoryChanges) -> dict[str, Integers] | None:
    """Sums bytes that were allocated and freed directly in each slice: of devices if any has memory, else of hosts.

    Returns:
        `self_allocated_bytes` and `self_freed_bytes`, a value per slice; None if nothing was recorded.
    """
    on_device = changes.is_change & ~np.isin(changes.device_type, (*HOSTS, META, NONE))
    wanted = on_device if on_device.any() else changes.is_change & np.isin(changes.device_type, HOSTS)
    if not wanted.any():
        return None
    rows = innermost(timeline, nesting, changes.thread[wanted], changes.time_ns[wanted])
    num_bytes = changes.num_bytes[wanted]
    found = {}
    for name, part in (("self_allocated_bytes", num_bytes > 0), ("self_freed_bytes", num_bytes < 0)):
        inside = part & (rows >= 0)
        found[name] = np.zeros(len(timeline.name), np.int64)
        np.add.at(found[name], rows[inside], np.abs(num_bytes[inside]))
    return found


def innermost(timeline: RankTimeline, nesting: Nesting, thread: Integers, time_ns: Integers) -> Integers:
    """Returns the innermost slice of a thread that runs at each time; -1 if there is none."""
    found = np.full(len(time_ns), -1, np.int64)
    held = np.flatnonzero(timeline.type < NUM_HOST)
    for number in np.unique(thread):
        rows, mine = held[timeline.thread[held] == number], np.flatnonzero(thread == number)
        place = np.searchsorted(timeline.start_ns[rows], time_ns[mine], "right") - 1
        found[mine] = np.where(place >= 0, rows[place], -1) if len(rows) else -1
    end = timeline.end_ns
    while True:
        over = (found >= 0) & (end[found] < time_ns) if len(end) else np.zeros(0, bool)
        if not over.any():
            return found
        found[over] = nesting.parent[found[over]]
