"""Which calls of a model have results that nothing uses: a trace of the model would drop them.

Every operator is a node that needs the last writers of the memory it reads. What the results of the model need is used,
and so is what changes memory from outside of the call, like a buffer. In doubt a call counts as used.

Which operator calls compute nothing that the script uses: those of a trace that is made while a model runs. A trace
runs on fake or meta tensors (torch.export, compilers, probes of shapes), or for its graph alone (make_fx,
`torch.func.linearize`). Where the model itself is on such tensors its calls are what is to be counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import _symbolic_trace
from torch.utils._pytree import tree_leaves

from distprof.counting.torch_functions import FunctionCall
from distprof.model.tensors import has_data, tensors


class Span(NamedTuple):
    """A torch function and what it did."""

    call: FunctionCall
    nodes: Collection[int]
    """The operators that ran; of one that only returned a view, those that wrote what is viewed."""


class DataFlow:
    """What each operator of a call needs, in the order in which they run."""

    def __init__(self) -> None:
        self._needs: list[set[int]] = []
        """Node -> nodes whose results it reads."""
        self._writer: dict[int, int] = {}
        """Memory -> the last node that wrote to it."""
        self._outside: set[int | None] = set()
        """Memory that was written to and that no node has allocated."""
        self._kept: set[int] = set()
        """Nodes that are used whatever becomes of their results."""
        self._spans: list[Span] = []
        self.unused_calls: Counter[FunctionCall] = Counter()
        """Calls of torch functions of which nothing was used; known at the end."""

    @property
    def num_operators(self) -> int:
        """So many operators ran until now."""
        return len(self._needs)

    def add_operator(self, func: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        """Adds an operator that has run; views are none, they neither compute nor write."""
        read, made = _memory(tensors((args, kwargs))), _memory(tensors(output))
        written = _memory(tensors(_written(func, args, kwargs)))
        if None in read or None in made:
            self._kept.add(len(self._needs))
        elif made and made <= read and not written:
            return
        self._outside |= {place for place in written if place not in self._writer}
        self._outside -= made - read  # a new tensor may lie where an old one was
        if not self._outside.isdisjoint(written):
            self._kept.add(len(self._needs))
        node = len(self._needs)
        self._needs.append({self._writer[place] for place in read if place in self._writer})
        self._writer.update(dict.fromkeys(written | (made - read), node))

    def add_function(self, call: FunctionCall, first: int, output: object) -> None:
        """Adds a torch function that has run; `first` is the number of operators before it."""
        self._spans.append(Span(call, range(first, len(self._needs)) or self._writers(output)))

    def end(self, result: object) -> None:
        """Finds the unused calls of a model that has returned `result`."""
        ends = _memory(_all_tensors(result, set()))
        if ends:  # a call without results is made for what it changes
            used = self._used({self._writer[place] for place in ends if place in self._writer})
            self.unused_calls = Counter(span.call for span in self._spans
                                        if span.nodes and used.isdisjoint(span.nodes))

    def _writers(self, tree: object) -> set[int]:
        return {self._writer[place] for place in _memory(tensors(tree)) if place in self._writer}

    def _used(self, ends: set[int]) -> set[int]:
        used, waiting = set(), [*ends, *self._kept]
        while waiting:
            node = waiting.pop()
            if node not in used:
                used.add(node)
                waiting.extend(self._needs[node])
        return used


def _memory(found: list[torch.Tensor]) -> set[Any]:
    """The storages of tensors, None for a tensor without one of its own (sparse, nested); views share theirs."""
    return {_storage(tensor) for tensor in found}


def _storage(tensor: torch.Tensor) -> int | None:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _written(func: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operator changes."""
    places, names = _write_access(func)
    return [args[place] for place in places if place < len(args)] + [kwargs[name] for name in names if name in kwargs]


@cache
def _write_access(func: object) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if not isinstance(func, torch._ops.OpOverload):
        return (), ()
    changed = [(place, argument.name) for place, argument in enumerate(func._schema.arguments)
               if argument.alias_info is not None and argument.alias_info.is_write]
    return tuple(place for place, _ in changed), tuple(name for _, name in changed)


def _all_tensors(result: object, opened: set[int]) -> list[torch.Tensor]:
    """Tensors in a result, in attributes of objects as well: a cache of keys and values."""
    found = tensors(result)
    for leaf in tree_leaves(result):
        if not isinstance(leaf, torch.Tensor) and hasattr(leaf, "__dict__") and id(leaf) not in opened:
            opened.add(id(leaf))
            found += _all_tensors(list(vars(leaf).values()), opened)
    return found


OF_TRACES = FakeTensor, FunctionalTensor
tracing_state = torch._C._get_tracing_state


def are_real(tensors: Iterable[torch.Tensor]) -> bool | None:
    """Whether all tensors have data; None without tensors."""
    found = list(tensors)
    return has_data(*found) if found else None


def is_traced(args: tuple[Any, ...], output: object) -> bool:
    """Whether a call is part of a trace in the middle of a model with data."""
    # every operator call comes here, and nearly all of them end at the first tensor
    first = output if isinstance(output, torch.Tensor) else _first((output, args))
    if first is not None and (isinstance(first, OF_TRACES) or first.is_meta):
        return True
    return bool(getattr(_symbolic_trace, "_is_fx_tracing_flag", False))


def is_torchscript_tracing() -> bool:
    """Whether `torch.jit.trace` runs; inside of an operator it does not say so."""
    return tracing_state() is not None


def _first(values: Any) -> torch.Tensor | None:
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (tuple, list)) and (found := _first(value)) is not None:
            return found
    return None
