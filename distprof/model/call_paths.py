"""Call paths: the chain of running modules that the work of an operator belongs to, in forward and in backward.

Work of a module's call that runs when the call seems over: its own forward hooks, and a forward that is a generator.
torch calls global hooks in front of those of a module, and a generator runs when its results are asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from distprof.model.modules import Site
from distprof.model.scopes import Frame
from distprof.model.tensors import tensors

MARK = "distprof.call_path"
PARAMETERS = 2**63
"""Sequence numbers from here on are those of nodes that accumulate gradients of parameters; no call makes them."""


class CallPath:
    """The chain of modules that were running, each chain kept once."""

    __slots__ = ("children", "outer", "site")

    def __init__(self, outer: Self | None, site: Site | None) -> None:
        self.outer = outer
        self.site = site
        """The innermost module; None outside of every module."""
        self.children: dict[int, Self] = {}

    def child(self, site: Site) -> Self:
        """This chain with one more module."""
        found = self.children.get(id(site))
        return self.children.setdefault(id(site), type(self)(self, site)) if found is None else found

    def sites(self) -> set[Site]:
        """The modules of the chain, each once, and containers that hold one without being called: a ModuleList."""
        found: set[Site] = set()
        for path in self.outward():
            if path.site is not None:
                found.update((path.site, *_holders(path.outer.site if path.outer is not None else None, path.site)))
        return found

    def outward(self) -> Iterator[Self]:
        """This chain, then those without the innermost modules."""
        path: Self | None = self
        while path is not None:
            yield path
            path = path.outer


def _holders(outer: Site | None, site: Site) -> list[Site]:
    """The sites between a module and the one that calls it; none where the caller does not hold it."""
    above, parent = [], site.parent
    while parent is not None and parent is not outer:
        above.append(parent)
        parent = parent.parent
    return above if parent is outer and outer is not None else []


class RunningCall(NamedTuple):
    """A module call while it runs."""

    path: CallPath
    first: int
    """Autograd nodes that this thread makes from this sequence number on belong to the call, or to one inside."""
    outer: RunningCall | None
    computed: int = 0
    """How many operators had computed anything when it began."""
    traced: bool = False
    """Whether torch.jit.trace makes the call."""


def mark_nodes(result: object, call: RunningCall) -> None:
    """Marks the autograd nodes behind a result with the call that made them; marks stay.

    Nodes that this thread made before `call`, but inside one around it, are marked with that one. So a mark says as
    well that the nodes above have theirs: no node is walked again by the calls around.
    """
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors(result) if tensor.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        number = node._sequence_nr()
        if number >= PARAMETERS or MARK in (marks := node.metadata):
            continue
        maker: RunningCall | None = call
        while maker is not None and number < maker.first:
            maker = maker.outer
        if maker is not None:
            marks[MARK] = maker.path
            waiting += [above for above, _ in node.next_functions if above is not None]


def owner_of_running_node() -> CallPath | None:
    """The call that made the autograd node that runs on this thread; None without a node or mark."""
    node: Any = torch._C._current_autograd_node()
    return node.metadata.get(MARK) if node is not None else None


FORWARD = "forward"
sequence_number = torch._C._autograd._get_sequence_nr
CALL = nn.Module._call_impl.__code__


class LeftCalls:
    """The outermost calls of a step that have returned."""

    def __init__(self) -> None:
        self._by_module: dict[int, Frame] = {}
        """By id of the module, which the frame keeps alive."""
        self._nodes: dict[int, Frame] = {}
        """Sequence number of an autograd node that is made when the call is over -> the call."""

    def left(self, frame: Frame) -> None:
        """An outermost call has returned."""
        self._by_module[id(frame.module)] = frame

    def clear(self) -> None:
        """Forgets all."""
        self._by_module.clear()
        self._nodes.clear()

    def running(self) -> Frame | None:
        """The call whose hook or generator runs on this thread; None where only the script does."""
        frame: FrameType | None = sys._getframe(1) if self._by_module else None
        while frame is not None:
            code = frame.f_code
            if (code is CALL or code.co_name == FORWARD) and code.co_argcount:
                found = self._by_module.get(id(frame.f_locals.get(code.co_varnames[0])))
                if found is not None:
                    self._nodes[sequence_number() - 1] = found  # the node of an operator is there before it runs
                    return found
            frame = frame.f_back
        return None

    def maker_of_running_node(self) -> Frame | None:
        """The call in whose hook or generator the autograd node was made that runs on this thread."""
        node: Any = torch._C._current_autograd_node() if self._nodes else None
        return self._nodes.get(node._sequence_nr()) if node is not None else None
