"""Call paths: the chain of running modules that the work of an operator belongs to, in forward and in backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

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


def mark_nodes(result: Any, first: int, path: CallPath) -> None:
    """Marks the autograd nodes behind a result with the call that made them; marks stay.

    Only those made on this thread since sequence number `first`.
    """
    for node in _nodes_since(first, [tensor.grad_fn for tensor in tensors(result) if tensor.grad_fn is not None]):
        node.metadata.setdefault(MARK, path)


def owner_of_running_node() -> CallPath | None:
    """The call that made the autograd node that runs on this thread; None without a node or mark."""
    node: Any = torch._C._current_autograd_node()
    return node.metadata.get(MARK) if node is not None else None


def _nodes_since(first: int, ends: Iterable[Any]) -> Iterator[Any]:
    waiting, seen = list(ends), set()
    while waiting:
        node = waiting.pop()
        if node not in seen and first <= node._sequence_nr() < PARAMETERS:
            seen.add(node)
            yield node
            waiting.extend(above for above, _ in node.next_functions if above is not None)
