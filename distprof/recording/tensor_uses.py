"""When each allocation of a profiler session was last used by an operator.

The Chrome trace only has the shapes of inputs. The profiler's own events, from which Kineto makes the trace, also know
the allocation of each input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch._C import _profiler

from distprof.contract.tables import TableRow

MOST_EVENTS = 1_000_000
"""Maximum number of events that are examined; each takes about 14 us."""
ENGINE = "autograd::engine::"
"""Prefix of functions of the autograd engine, which call the node that does the work."""
NO_USE = frozenset((
    "alias", "as_strided", "chunk", "contiguous", "detach", "expand", "expand_as", "flatten", "is_pinned", "narrow",
    "numpy_T", "permute", "reshape", "resize_", "result_type", "select", "size", "slice", "split", "squeeze", "stride",
    "t", "to", "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as"))
"""Operators that do not read a tensor themselves: they return a view of it, or call one that reads it."""


class _Life:
    """The use of an allocation."""

    __slots__ = ("address", "by", "device", "last_ns", "made_ns")

    def __init__(self) -> None:
        self.made_ns: int | None = None
        self.last_ns, self.by = 0, ""
        self.address, self.device = 0, ""

    def use(self, at_ns: int, by: str) -> None:
        if at_ns > self.last_ns:
            self.last_ns, self.by = at_ns, by


def tensor_uses(roots: Iterable[Any]) -> list[TableRow] | None:
    """Returns the rows of uses.parquet.

    Args:
        roots: The profiler's `experimental_event_tree()`.

    Returns:
        One row per allocation made in the session; None if there are more than `MOST_EVENTS` events.
    """
    lives: dict[int, _Life] = {}
    todo, num_events = [(root, "", 0) for root in roots], 0
    while todo:
        event, outer, end_ns = todo.pop()
        num_events += 1
        if num_events > MOST_EVENTS:
            return None
        tag = event.tag
        if tag == _profiler._EventType.TorchOp and event.extra_fields.scope != _profiler.RecordScope.USER_SCOPE:
            if not outer and not event.name.startswith(ENGINE):
                outer, end_ns = event.name, event.end_time_ns
            _use(lives, event, outer)
        elif tag == _profiler._EventType.Allocation:
            _allocate(lives, event, outer, end_ns)
        todo += [(child, outer, end_ns) for child in event.children]
    return [{"device": life.device, "address": life.address, "made_ns": life.made_ns, "last_used_ns": life.last_ns,
             "used_by": life.by or None} for life in lives.values() if life.made_ns is not None]


def _use(lives: dict[int, _Life], event: Any, outer: str) -> None:
    if event.name.removeprefix("aten::") in NO_USE:
        return
    for tensor in _tensors(event.extra_fields.inputs):
        if tensor.allocation_id is not None:
            life = lives.get(tensor.allocation_id)
            if life is None:
                life = lives[tensor.allocation_id] = _Life()
            life.use(event.end_time_ns, outer)


def _tensors(inputs: Iterable[Any]) -> Iterator[Any]:
    for one in inputs:
        for tensor in one if isinstance(one, list) else (one,):
            if isinstance(tensor, _profiler._TensorMetadata):
                yield tensor


def _allocate(lives: dict[int, _Life], event: Any, outer: str, end_ns: int) -> None:
    """Notes an allocation: the outermost operator it was made in writes to it until that operator ends."""
    fields = event.extra_fields
    if fields.alloc_size <= 0 or fields.allocation_id is None:
        return
    life = lives.setdefault(fields.allocation_id, _Life())
    life.made_ns, life.address, life.device = event.start_time_ns, fields.ptr, str(fields.device)
    life.use(max(end_ns, event.start_time_ns), outer)
