"""The timeline of each thread: one mark per change of what runs, so that every moment belongs to one share of time.

Hooks the autograd nodes at which the backward of another module begins. The engine runs the nodes of a thread in
reverse order of creation, so the backward of a call is one stretch of nodes that contains the stretches of the calls
inside. A node is hooked if its gradient may come from outside of its stretch, which is true for the first node of a
stretch to run. The graph gets no new nodes.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

from distprof.model.call_paths import PARAMETERS
from distprof.timing.latency import Chain, Share
from distprof.timing.stopwatch import Stopwatch

NO_TASK = -1


class Tape:
    """What runs on one thread, and the owners of the autograd nodes that it makes."""

    __slots__ = ("_last_step", "chains", "marks", "sequence", "shares", "task")

    def __init__(self, mark: object) -> None:
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

    def runs(self, mark: object, share: Share | None) -> None:
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


def hook_backward(outputs: Iterable[Any], first: int, tape: Tape,
                  hook: Callable[[Share | None], Callable[..., None]]) -> None:
    """Hooks nodes behind `outputs` made since number `first`, and nodes to which their gradients leave.

    Args:
        outputs: Nodes of the tensors that modules returned.
        first: Sequence number at the start of the outermost call.
        tape: Tape of the thread that made the nodes.
        hook: For a share, or None for what is outside of modules: what a node calls with its gradients when the
            backward of that share begins.
    """
    sequence, chains = tape.sequence, tape.chains
    stretches: dict[Any, int] = {}
    waiting: list[Any] = []
    for node in outputs:
        number = node._sequence_nr()
        if number < PARAMETERS and node not in stretches:
            stretches[node] = bisect_right(sequence, number) - 1
            if number >= first:
                waiting.append(node)
    hooked = set(stretches)
    while waiting:
        node = waiting.pop()
        here = stretches[node]
        for above, _ in node.next_functions:
            if above is None:
                continue
            there = stretches.get(above)
            if there is None:
                number = above._sequence_nr()
                if number >= PARAMETERS:
                    continue
                there = stretches[above] = bisect_right(sequence, number) - 1
                if number >= first:
                    waiting.append(above)
            if there != here:
                hooked.add(above)
    for node in hooked:
        if stretches[node] >= 0:  # else its owner was dropped
            chain = chains[stretches[node]]
            node.register_prehook(hook(None if chain is None else chain.backward))
