"""Hooks the autograd nodes at which the backward of another module begins.

The engine runs the nodes of a thread in reverse order of creation, so the backward of a call is one stretch of nodes
that contains the stretches of the calls inside. A node is hooked if its gradient may come from outside of its stretch,
which is true for the first node of a stretch to run. The graph gets no new nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

from distprof.model.call_paths import PARAMETERS
from distprof.timing.latency import Share
from distprof.timing.thread_tapes import Tape


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
