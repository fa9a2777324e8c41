"""The timeline of each thread: one mark per change of what runs, so that every moment belongs to one share of time."""

from __future__ import annotations

import threading
from typing import Any

from distprof.timing.latency import Chain, Share
from distprof.timing.stopwatch import Stopwatch

TapeEntry = tuple[Any, Share | None]
"""A mark and the share that runs from it on; None: no module."""
NO_TASK = -1


class Tape:
    """Entries of one thread, and the owners of the autograd nodes that it makes."""

    __slots__ = ("_last_step", "chains", "entries", "sequence", "task")

    def __init__(self, mark: Any) -> None:
        self.entries: list[TapeEntry] = [(mark, None)]
        self.task = NO_TASK
        """Id of the autograd graph task that this thread works on."""
        # autograd numbers the nodes of a thread as they are made; those from sequence[i] on belong to chains[i]
        self.sequence: list[int] = [0]
        self.chains: list[Chain | None] = [None]
        self._last_step = 0

    @property
    def running(self) -> Share | None:
        return self.entries[-1][1]

    def abandon(self) -> None:
        """Ends a backward that raised; its end time is unknown."""
        self.task = NO_TASK
        self.entries[-1] = self.entries[-1][0], None

    def cut(self) -> list[TapeEntry]:
        """Ends a step and returns its entries; drops the owners of nodes of the step before."""
        ended, self.entries = self.entries, self.entries[-1:]
        del self.sequence[:self._last_step], self.chains[:self._last_step]
        self._last_step = len(self.sequence)
        return ended


class Tapes(threading.local):
    """The tape of each thread."""

    def __init__(self, watch: Stopwatch, every: list[Tape]) -> None:
        self.mine = Tape(watch.mark())
        every.append(self.mine)
