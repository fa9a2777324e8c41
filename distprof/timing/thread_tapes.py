"""The timeline of each thread: one mark per change of what runs, so that every moment belongs to one share of time."""

from __future__ import annotations

import threading
from typing import Any

from distprof.timing.latency import Chain, Share
from distprof.timing.stopwatch import Stopwatch

NO_TASK = -1


class Tape:
    """What runs on one thread, and the owners of the autograd nodes that it makes."""

    __slots__ = ("_last_step", "chains", "marks", "sequence", "shares", "task")

    def __init__(self, mark: Any) -> None:
        # two lists, as a tuple for each mark would make Python's garbage collector run in every third step
        self.marks: list[Any] = [mark]
        self.shares: list[Share | None] = [None]
        """What runs from each mark on; None: no module."""
        self.task = NO_TASK
        """Id of the autograd graph task that this thread works on."""
        # autograd numbers the nodes of a thread as they are made; those from sequence[i] on belong to chains[i]
        self.sequence: list[int] = [0]
        self.chains: list[Chain | None] = [None]
        self._last_step = 0

    @property
    def running(self) -> Share | None:
        return self.shares[-1]

    def runs(self, mark: Any, share: Share | None) -> None:
        """From this mark on another share runs."""
        self.marks.append(mark)
        self.shares.append(share)

    def abandon(self) -> None:
        """Ends a backward that raised; its end time is unknown."""
        self.task = NO_TASK
        self.shares[-1] = None

    def cut(self) -> tuple[list[Any], list[Share | None]]:
        """Ends a step and returns its marks and shares; drops the owners of nodes of the step before."""
        ended = self.marks, self.shares
        self.marks, self.shares = self.marks[-1:], self.shares[-1:]
        del self.sequence[:self._last_step], self.chains[:self._last_step]
        self._last_step = len(self.sequence)
        return ended


class Tapes(threading.local):
    """The tape of each thread."""

    def __init__(self, watch: Stopwatch, every: list[Tape]) -> None:
        self.mine = Tape(watch.mark())
        every.append(self.mine)
