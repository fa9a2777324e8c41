"""What ran on a thread, and from when on: marks come in as modules and autograd nodes begin, time by share goes out.

A tape gives every moment to exactly one share, so nothing is counted twice and nothing is lost between two marks.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from itertools import pairwise
from typing import Any

from distprof.timing.chains import Chain, Share
from distprof.timing.stopwatch import Stopwatch

Entry = tuple[Any, Share | None]
"""From this mark on this share runs; None: nothing of a module."""
NO_TASK = -1


class Tape:
    """One thread's entries, and whose the autograd nodes are that it makes."""

    __slots__ = ("_last_step", "chains", "entries", "sequence", "task")

    def __init__(self, mark: Any) -> None:
        self.entries: list[Entry] = [(mark, None)]
        self.task = NO_TASK
        """The pass of the autograd engine that this thread is in."""
        # autograd numbers nodes by thread as they are made: those from sequence[i] on belong to chains[i]
        self.sequence: list[int] = [0]
        self.chains: list[Chain | None] = [None]
        self._last_step = 0

    @property
    def running(self) -> Share | None:
        """What runs now."""
        return self.entries[-1][1]

    def makes_nodes(self, chain: Chain | None, number: int) -> None:
        """Nodes from this sequence number on belong to this chain."""
        self.sequence.append(number)
        self.chains.append(chain)

    def stretch_of(self, number: int) -> int:
        """Which stretch of nodes this one is in, an index of `chains`; -1 where that is forgotten."""
        return bisect_right(self.sequence, number) - 1

    def abandon(self) -> None:
        """Backward ended with an exception: nobody knows when."""
        self.task = NO_TASK
        self.entries[-1] = self.entries[-1][0], None

    def cut(self) -> list[Entry]:
        """Ends a step: gives its entries; whose nodes those of the step before it were is forgotten."""
        ended, self.entries = self.entries, self.entries[-1:]
        del self.sequence[:self._last_step], self.chains[:self._last_step]
        self._last_step = len(self.sequence)
        return ended


class Tapes(threading.local):
    """The tape of each thread."""

    def __init__(self, watch: Stopwatch, every: list[Tape]) -> None:
        self.mine = Tape(watch.mark())
        every.append(self.mine)


def play(entries: list[Entry], watch: Stopwatch) -> None:
    """Gives each share its time."""
    times = [watch.resolve(mark) for mark, _ in entries]
    for (_, share), (start, end) in zip(entries, pairwise(times), strict=False):
        if share is not None:
            share.add(end - start)
