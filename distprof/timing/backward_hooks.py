"""Hooks the autograd nodes at which the backward of another module begins.

The engine runs the nodes of a thread in reverse order of creation, so the backward of a call is one stretch of nodes
that contains the stretches of the calls inside. A node is hooked if its gradient may come from outside of its stretch,
which is true for the first node of a stretch to run. The graph gets no new nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from distprof.model.call_paths import PARAMETERS
from distprof.timing.thread_tapes import Tape


def hook_backward(outputs: Iterable[Any], first: int, tape: Tape, begins: Callable[..., None]) -> None:
    """Hooks nodes behind `outputs` made since number `first`, and nodes to which their gradients leave.

    Args:
        outputs: Nodes of the tensors that modules returned.
        first: Sequence number at the start of the outermost call.
        tape: Tape of the thread that made the nodes.
        begins: Called with the share whose backward begins (None outside of modules) and the gradients.
    """
    stretches = {node: tape.stretch_of(node._sequence_nr()) for node in outputs if node._sequence_nr() < PARAMETERS}
    hooked = set(stretches)
    waiting = [node for node in stretches if node._sequence_nr() >= first]
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
                there = stretches[above] = tape.stretch_of(number)
                if number >= first:
                    waiting.append(above)
            if there != here:
                hooked.add(above)
    for node in hooked:
        if stretches[node] >= 0:
            chain = tape.chains[stretches[node]]
            node.register_prehook(partial(begins, None if chain is None else chain.backward))
