"""Finds calls of a model whose results nothing uses (a trace of the model would drop them), and calls of tracers.

Every operator is a node that depends on the last writers of the memory that it reads. Nodes on which the results of the
model depend are used, as are nodes that change memory from outside the call, like a buffer. In doubt, a call counts as
used.

Operators that a tracer runs during a call of the model are not work of the model. A tracer runs on fake or meta tensors
(torch.export, compilers, shape probes), or only for the graph (make_fx, `torch.func.linearize`). If the model itself is
on such tensors, its calls are counted.
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
    """A call of a torch function, and the operators that it ran."""

    call: FunctionCall
    nodes: Collection[int]
    """Operators that ran in it; if it only returned a view, the operators that wrote the viewed memory."""


class DataFlow:
    """The dependencies of each operator of a call, in the order in which they run."""

    def __init__(self) -> None:
        self._needs: list[set[int]] = []
        """For each node, the nodes whose results it reads."""
        self._writer: dict[int, int] = {}
        """Storage -> the last node that wrote to it."""
        self._outside: set[int | None] = set()
        """Storages that were written to but not allocated by a node."""
        self._kept: set[int] = set()
        """Nodes that are used even if their results are not."""
        self._spans: list[Span] = []
        self.unused_calls: Counter[FunctionCall] = Counter()
        """Calls of torch functions whose results were not used; filled by `end`."""

    @property
    def num_operators(self) -> int:
        """Number of operators that have run so far."""
        return len(self._needs)

    def add_operator(self, func: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        """Adds an operator that has run; views are ignored, as they neither compute nor write."""
        read, made = _memory(tensors((args, kwargs))), _memory(tensors(output))
        written = _memory(tensors(_written(func, args, kwargs)))
        if None in read or None in made:
            self._kept.add(len(self._needs))
        elif made and made <= read and not written:
            return
        self._outside |= {place for place in written if place not in self._writer}
        self._outside -= made - read  # a new tensor may reuse the memory of an old one
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
        if ends:  # a call without results is made for its side effects
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
    """Returns the storages of tensors, which views share; None for a tensor without its own (sparse, nested)."""
    return {_storage(tensor) for tensor in found}


def _storage(tensor: torch.Tensor) -> int | None:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _written(func: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the arguments that an operator changes."""
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
    """Returns the tensors in a result, including attributes of objects, like a key-value cache."""
    found = tensors(result)
    for leaf in tree_leaves(result):
        if not isinstance(leaf, torch.Tensor) and hasattr(leaf, "__dict__") and id(leaf) not in opened:
            opened.add(id(leaf))
            found += _all_tensors(list(vars(leaf).values()), opened)
    return found


OF_TRACES = FakeTensor, FunctionalTensor
tracing_state = torch._C._get_tracing_state


def are_real(tensors: Iterable[torch.Tensor]) -> bool | None:
    """Returns whether all tensors have data; None without tensors."""
    found = list(tensors)
    return has_data(*found) if found else None


def is_traced(args: tuple[Any, ...], output: object) -> bool:
    """Returns whether an operator call belongs to a tracer, if the model itself has data."""
    # called for every operator; nearly always the first tensor decides
    first = output if isinstance(output, torch.Tensor) else _first((output, args))
    if first is not None and (isinstance(first, OF_TRACES) or first.is_meta):
        return True
    return bool(getattr(_symbolic_trace, "_is_fx_tracing_flag", False))


def is_torchscript_tracing() -> bool:
    """Returns whether `torch.jit.trace` runs; inside an operator, torch does not report that."""
    return tracing_state() is not None


def _first(values: Any) -> torch.Tensor | None:
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (tuple, list)) and (found := _first(value)) is not None:
            return found
    return None
