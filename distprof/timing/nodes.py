"""Autograd nodes that a call made come in, a hook in front of each at which another module's backward begins goes out.

The engine runs the nodes of a thread in the reverse order in which they were made, so the backward of a call is one
stretch of nodes, and those of the calls inside lie within it. A node is hooked if its gradient may come from outside
of its stretch: whichever of a stretch runs first is such a node. Nothing is added to the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from distprof.timing.chains import Share
from distprof.timing.tapes import Tape

PARAMETERS = 2**63
"""Sequence numbers from here on belong to the nodes that accumulate gradients; they run as soon as they can."""


def watch(outputs: Iterable[Any], first: int, tape: Tape, begins: Callable[..., None]) -> None:
    """Hooks the nodes behind `outputs` that were made since number `first`, and where their gradients leave.

    Args:
        outputs: Nodes of tensors that modules returned.
        first: Sequence number at which the outermost call began.
        tape: Of the thread that made the nodes.
        begins: Is called with the share whose backward begins (None outside of modules) and the gradients.
    """
    stretches = {node: tape.stretch_of(node._sequence_nr()) for node in outputs if node._sequence_nr() < PARAMETERS}
    hooked = set(stretches)
    waiting = list(stretches)
    while waiting:
        node = waiting.pop()
        here = stretches[node]
        if node._sequence_nr() < first:
            continue
        for above, _ in node.next_functions:
            if above is None:
                continue
            there = stretches.get(above)
            if there is None:
                number = above._sequence_nr()
                if number >= PARAMETERS:
                    continue
                there = stretches[above] = tape.stretch_of(number)
                if number >= first:
                    waiting.append(above)
            if there != here:
                hooked.add(above)
    for node in hooked:
        if stretches[node] >= 0:
            node.register_prehook(partial(begins, _backward_share(tape, stretches[node])))


def _backward_share(tape: Tape, stretch: int) -> Share | None:
    chain = tape.chains[stretch]
    return None if chain is None else chain.backward
