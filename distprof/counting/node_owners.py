"""Marks autograd nodes with the module call that made them, so that their backward work is counted for that module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from distprof.model.call_paths import CallPath
from distprof.model.tensors import tensors
from distprof.timing.backward_hooks import PARAMETERS

MARK = "distprof.call_path"


def mark_nodes(result: Any, first: int, path: CallPath) -> None:
    """Marks the nodes behind a result that were made on this thread since sequence number `first`; marks stay."""
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
