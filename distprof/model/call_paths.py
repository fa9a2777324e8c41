"""Call paths: the chain of modules to which an operator's work is attributed, in forward and in backward.

`LeftCalls` also covers work of a module's call that runs after our hook has seen the call end: the module's own forward
hooks, which torch calls after global hooks, and a forward that is a generator, which runs when its results are
requested.
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
"""Smallest sequence number of nodes that accumulate gradients of parameters, which no call creates."""


class CallPath:
    """A chain of nested module calls; equal chains are one object."""

    __slots__ = ("children", "outer", "site")

    def __init__(self, outer: Self | None, site: Site | None) -> None:
        self.outer = outer
        self.site = site
        """The innermost module; None outside all modules."""
        self.children: dict[int, Self] = {}

    def child(self, site: Site) -> Self:
        """Returns this chain with one more module inside."""
        found = self.children.get(id(site))
        return self.children.setdefault(id(site), type(self)(self, site)) if found is None else found

    def sites(self) -> set[Site]:
        """Returns the modules of the chain, each once, and containers of them that are not called, like a
        ModuleList."""
        found: set[Site] = set()
        for path in self.outward():
            if path.site is not None:
                found.update((path.site, *_holders(path.outer.site if path.outer is not None else None, path.site)))
        return found

    def outward(self) -> Iterator[Self]:
        """Yields this chain, then the chains that enclose it."""
        path: Self | None = self
        while path is not None:
            yield path
            path = path.outer


def _holders(outer: Site | None, site: Site) -> list[Site]:
    """Returns the sites between a module and its caller; none if the caller does not contain the module."""
    above, parent = [], site.parent
    while parent is not None and parent is not outer:
        above.append(parent)
        parent = parent.parent
    return above if parent is outer and outer is not None else []


class RunningCall(NamedTuple):
    """A running module call."""

    path: CallPath
    first: int
    """Autograd nodes of this thread from this sequence number on belong to the call or to one inside it."""
    outer: RunningCall | None
    computed: int = 0
    """Number of operators that had computed anything when the call began."""
    traced: bool = False
    """Whether torch.jit.trace makes the call."""


def mark_nodes(result: object, call: RunningCall) -> None:
    """Marks the autograd nodes of a result with the call that created them; marks remain.

    Nodes that this thread created before `call`, but inside an enclosing call, are marked with that call. A marked node
    therefore means that all nodes above it are marked too, and enclosing calls need not walk them again.
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
    """Returns the call that created the autograd node running on this thread; None without a node or mark."""
    node: Any = torch._C._current_autograd_node()
    return node.metadata.get(MARK) if node is not None else None


FORWARD = "forward"
sequence_number = torch._C._autograd._get_sequence_nr
CALL = nn.Module._call_impl.__code__


class LeftCalls:
    """The outermost calls of a step that have returned."""

    def __init__(self) -> None:
        self._by_module: dict[int, Frame] = {}
        """id of the module, which the frame keeps alive -> its call."""
        self._nodes: dict[int, Frame] = {}
        """Sequence number of an autograd node created after the call returned -> the call."""

    def left(self, frame: Frame) -> None:
        """Notes that an outermost call has returned."""
        self._by_module[id(frame.module)] = frame

    def clear(self) -> None:
        """Forgets all calls."""
        self._by_module.clear()
        self._nodes.clear()

    def running(self) -> Frame | None:
        """Returns the call whose hook or generator runs on this thread; None if there is none."""
        frame: FrameType | None = sys._getframe(1) if self._by_module else None
        while frame is not None:
            code = frame.f_code
            if (code is CALL or code.co_name == FORWARD) and code.co_argcount:
                found = self._by_module.get(id(frame.f_locals.get(code.co_varnames[0])))
                if found is not None:
                    self._nodes[sequence_number() - 1] = found  # nodes are created before their operators run
                    return found
            frame = frame.f_back
        return None

    def maker_of_running_node(self) -> Frame | None:
        """Returns the call whose hook or generator created the autograd node running on this thread; None if
        unknown."""
        node: Any = torch._C._current_autograd_node() if self._nodes else None
        return self._nodes.get(node._sequence_nr()) if node is not None else None
