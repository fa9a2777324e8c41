"""Call paths: the chain of running modules that the work of an operator belongs to, in forward and in backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import torch

from distprof.model.modules import Site
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


def mark_nodes(result: Any, call: RunningCall) -> None:
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
