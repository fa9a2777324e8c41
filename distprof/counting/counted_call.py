"""Operators and modules of one call of a model, with sums by module, operator, kind and phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from distprof.contract.rank_json import ParamCount
from distprof.counting.known_calls import Shapes
from distprof.counting.torch_functions import FunctionCall


class OpCount(NamedTuple):
    """Calls of one operator in one module with the same shapes in one phase."""

    module_path: str | None
    """Innermost running module; None outside all modules."""
    within: frozenset[str]
    """All running modules, including the innermost."""
    op: str
    phase: str
    """forward, backward or recompute."""
    shapes: str
    """Shapes of the tensor inputs, as a JSON list."""
    dtype: str | None
    functions: tuple[str, ...]
    """The running torch functions, outermost first, like torch.nn.functional.linear; empty in backward."""
    calls: int
    macs: int
    flops: int
    causal_macs: int
    """`macs` excluding what a causal attention mask hides."""
    recompute_macs: int
    """Part of `macs`: scores that a fused attention backward recomputes."""
    elements: int
    """Elements processed by operators other than contractions."""
    estimate_flops: int
    """Rough FLOPs of FFTs, factorisations and distances; never part of `flops`."""
    read_bytes: int
    write_bytes: int
    kind: str
    """contraction, norm, activation, pool, softmax, loss, elementwise, view, ..., other."""
    counted: bool
    """False if the operator has neither formula nor kind."""
    note: str
    kernel: str = ""
    """The operator whose kernel called this one, like aten::_trilinear; other counters do not see such calls."""

    @property
    def function(self) -> str | None:
        """The innermost of `functions`; None if there is none."""
        return self.functions[-1] if self.functions else None

    @property
    def io_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCount:
    """One module; all numbers include its submodules."""

    path: str
    class_name: str
    depth: int
    calls: int
    """Number of forward calls, excluding recomputation."""
    params: ParamCount
    own_params: int
    """Number of parameters, excluding submodules."""
    input_shapes: Shapes
    """Shapes of the tensors passed to the first call."""
    output_shapes: Shapes
    macs: Mapping[str, int]
    """Multiply-accumulates by phase; FLOPs are twice that."""
    flops: Mapping[str, int]
    elements: int
    io_bytes: int
    shared: bool = False
    """True if the module also has another path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """An operator that ran and has neither a formula nor a kind."""

    op: str
    calls: int
    io_bytes: int


@dataclass(frozen=True, kw_only=True)
class CountedCall:
    """Everything that ran in one call of a model.

    FLOPs are 2 x MACs of contractions (matrix products, convolutions, attention, recurrent layers) on the shapes of
    this process; attention masks do not reduce them. Elementwise work is listed separately, by kind.
    """

    ops: tuple[OpCount, ...]
    modules: tuple[ModuleCount, ...]
    """All modules of the model in tree order, called or not."""
    functions: Mapping[FunctionCall, int] = field(repr=False)
    """Calls of torch functions, from which `distprof.peers` computes the totals of other counters."""
    params: ParamCount
    unused: Mapping[FunctionCall, int] = field(default_factory=dict, repr=False)
    """Calls among `functions` whose results were not used, if `count_with_unused` searched for them."""

    def total(self, quantity: str = "flops", phase: str | None = None) -> int:
        """Returns the sum of a quantity of `OpCount` over all operators, of one phase or of all."""
        return sum(getattr(op, quantity) for op in self.ops if phase in (None, op.phase))

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all phases."""
        return self.total("macs")

    @property
    def flops(self) -> int:
        """FLOPs of all phases: forward, and backward if it ran."""
        return self.total("flops")

    @property
    def forward_flops(self) -> int:
        """FLOPs of forward."""
        return self.total("flops", "forward")

    @property
    def backward_flops(self) -> int:
        """FLOPs of backward, excluding recomputation."""
        return self.total("flops", "backward")

    @property
    def recompute_flops(self) -> int:
        """FLOPs of forward calls that activation checkpointing repeats during backward."""
        return self.total("flops", "recompute")

    @property
    def causal_flops(self) -> int:
        """FLOPs of all phases, excluding what causal attention masks hide."""
        return 2 * self.total("causal_macs") + self.flops - 2 * self.macs

    @property
    def model_flops(self) -> int:
        """FLOPs excluding recomputation by activation checkpointing or by a fused attention backward."""
        return self.flops - self.recompute_flops - 2 * sum(
            op.recompute_macs for op in self.ops if op.phase != "recompute")

    def by_module(self, quantity: str = "flops") -> dict[str, int]:
        """Returns module path -> sum over its operators, including submodules; 0 for modules that did nothing."""
        sums = dict.fromkeys((module.path for module in self.modules), 0)
        for op in self.ops:
            for path in op.within:
                sums[path] += getattr(op, quantity)
        return sums

    def by_op(self, quantity: str = "flops") -> dict[str, int]:
        """Returns operator, like aten::mm -> sum, largest first, without zeros."""
        return _sums(self.ops, lambda op: op.op, quantity)

    def by_kind(self, quantity: str = "elements") -> dict[str, int]:
        """Returns kind of operator, like norm or activation -> sum, largest first, without zeros."""
        return _sums(self.ops, lambda op: op.kind, quantity)

    def by_module_and_op(self, quantity: str = "flops") -> dict[str, dict[str, int]]:
        """Returns module path -> operator -> sum, including submodules."""
        inside: dict[str, list[OpCount]] = {module.path: [] for module in self.modules}
        for op in self.ops:
            for path in op.within:
                inside[path].append(op)
        return {path: _sums(ops, lambda op: op.op, quantity) for path, ops in inside.items()}

    @cached_property
    def uncounted(self) -> tuple[Uncounted, ...]:
        """Operators with neither a formula nor a kind, most bytes first."""
        found: dict[str, list[OpCount]] = defaultdict(list)
        for op in self.ops:
            if not op.counted:
                found[op.op].append(op)
        listed = (Uncounted(op=name, calls=sum(op.calls for op in ops), io_bytes=sum(op.io_bytes for op in ops))
                  for name, ops in found.items())
        return tuple(sorted(listed, key=lambda one: (-one.io_bytes, one.op)))

    @property
    def coverage_ratio(self) -> float:
        """Fraction of all bytes moved that counted operators moved; 1.0 if every operator is counted."""
        moved, unknown = self.total("io_bytes"), sum(one.io_bytes for one in self.uncounted)
        return 1 - unknown / moved if moved else float(not self.uncounted)

    def measured(self, path: str) -> Mapping[str, Any]:
        """Returns the measured columns of a module by key; empty for a count."""
        return {}

    def measured_lines(self) -> tuple[tuple[str, str], ...]:
        """Returns label and text of measurements of the whole call; empty for a count."""
        return ()

    def __repr__(self) -> str:
        return (f"{type(self).__name__}(flops={self.flops}, macs={self.macs}, params={self.params.params}, "
                f"modules={len(self.modules)}, coverage_ratio={self.coverage_ratio:.3f})")


def _sums(ops: Iterable[OpCount], key: Callable[[OpCount], str], quantity: str) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for op in ops:
        sums[key(op)] += getattr(op, quantity)
    return {name: value for name, value in sorted(sums.items(), key=lambda item: (-item[1], item[0])) if value}
