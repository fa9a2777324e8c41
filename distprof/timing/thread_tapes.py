"""The timeline of each thread: one mark whenever what runs changes, so that every moment belongs to one `Share`.

`hook_backward` hooks the autograd nodes at which the backward of another module begins. The engine runs the nodes of a
thread in reverse order of creation, so the backward of a call is one range of nodes that contains the ranges of the
calls inside. A node is hooked if its gradient may come from outside of its range, which is true for the first node of a
range to run. The graph gets no new nodes.
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
    """What runs on one thread, and which modules own the autograd nodes that it creates."""

    __slots__ = ("_last_step", "chains", "marks", "sequence", "shares", "task")

    def __init__(self, mark: object) -> None:
        # two lists, since one tuple per mark would trigger Python's garbage collector in every third step
        self.marks: list[Any] = [mark]
        self.shares: list[Share | None] = [None]
        """What runs from each mark on; None outside of modules."""
        self.task = NO_TASK
        """Id of the autograd graph task that this thread works on; `NO_TASK` outside of backward."""
        # autograd numbers the nodes of a thread in order of creation; those from sequence[i] on belong to chains[i]
        self.sequence: list[int] = [0]
        self.chains: list[Chain | None] = [None]
        self._last_step = 0

    @property
    def running(self) -> Share | None:
        return self.shares[-1]

    def runs(self, mark: object, share: Share | None) -> None:
        """Notes that another share runs from this mark on."""
        self.marks.append(mark)
        self.shares.append(share)

    def abandon(self) -> None:
        """Ends a backward that raised; its end time is unknown, so the time since its last mark belongs to no share."""
        self.task = NO_TASK
        self.shares[-1] = None

    def cut(self) -> tuple[list[Any], list[Share | None]]:
        """Ends a step and returns its marks and shares; drops the node owners of the previous step."""
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
    """Hooks nodes created since number `first` that `outputs` depend on, and nodes that receive their gradients.

    Args:
        outputs: Nodes of the tensors that modules returned.
        first: Sequence number of autograd at the start of the outermost call.
        tape: Tape of the thread that created the nodes.
        hook: For a share (None: outside of modules), returns the function that a node calls with its gradients when the
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
        if stretches[node] >= 0:  # otherwise its owner was dropped
            chain = chains[stretches[node]]
            node.register_prehook(hook(None if chain is None else chain.backward))
