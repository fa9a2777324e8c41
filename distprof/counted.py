"""What a call of a model costs: a model and its inputs come in, exact FLOPs, MACs, bytes and parameters go out."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from distprof.contract import PHASES
from distprof.counting import CountPass, OpKey, OpSum, Shapes
from distprof.errors import UsageError
from distprof.functions import FunctionCall
from distprof.invocation import Invocation
from distprof.isolation import undisturbed
from distprof.modules import ModuleMap, Site
from distprof.params import ParamCount, count_params
from distprof.paths import CallPath
from distprof.reporters.view import View
from distprof.scopes import ModuleScopes
from distprof.topology import Topology

if TYPE_CHECKING:
    from distprof.reporters.frames import Frames
    from distprof.reporters.report import Report

ALONE = Topology(sizes={}, coordinates={}, source="one process")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCount:
    """Calls of one operator by one module with equal shapes in one phase."""

    module_path: str | None
    """Innermost module; None outside of every module."""
    within: frozenset[str]
    """All modules that were running, the innermost included."""
    op: str
    phase: str
    """forward, backward or recompute."""
    shapes: str
    """Shapes of the tensor inputs, as a JSON list."""
    dtype: str | None
    functions: tuple[str, ...]
    """The torch functions that were running, outermost first, like torch.nn.functional.linear; none in backward."""
    calls: int
    macs: int
    flops: int
    causal_macs: int
    """`macs` without what a causal attention mask hides."""
    recompute_macs: int
    """Part of `macs`: scores that a fused attention backward computes once more."""
    elements: int
    """Elements an operator that is no contraction works on."""
    estimate_flops: int
    """Roughly, for FFTs, factorisations and distances; never part of `flops`."""
    read_bytes: int
    write_bytes: int
    kind: str
    """contraction, norm, activation, pool, softmax, loss, elementwise, view, ..., other."""
    counted: bool
    """False where nobody knows what the operator does."""
    note: str

    @property
    def function(self) -> str | None:
        """The innermost of `functions`."""
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
    """Forward calls, recomputation apart."""
    params: ParamCount
    own_params: int
    """Parameters without those of submodules."""
    input_shapes: Shapes
    """Shapes of the tensors of the first call."""
    output_shapes: Shapes
    macs: Mapping[str, int]
    """Multiply-accumulates by phase; FLOPs are twice that."""
    flops: Mapping[str, int]
    elements: int
    io_bytes: int
    shared: bool = False
    """True where the same module stands under another path too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """An operator that ran and whose work nobody knows."""

    op: str
    calls: int
    io_bytes: int


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Everything that ran in one call of a model.

    FLOPs are 2 x MACs of contractions (matrix products, convolutions, attention, recurrent layers) on the shapes of
    this process; attention masks count in full. Elementwise work is kept apart, by kind.
    """

    ops: tuple[OpCount, ...]
    modules: tuple[ModuleCount, ...]
    """All modules of the model in tree order, called or not."""
    functions: Mapping[FunctionCall, int] = field(repr=False)
    """Calls of torch functions: what views by the rules of other counters are made of."""
    params: ParamCount

    def total(self, quantity: str = "flops", phase: str | None = None) -> int:
        """Sum of a quantity of `OpCount` over all operators, of one phase or all."""
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
        """FLOPs of backward, recomputation apart."""
        return self.total("flops", "backward")

    @property
    def recompute_flops(self) -> int:
        """FLOPs of forward calls that activation checkpointing repeats in backward."""
        return self.total("flops", "recompute")

    @property
    def causal_flops(self) -> int:
        """FLOPs of all phases without what causal attention masks hide."""
        return 2 * self.total("causal_macs") + self.flops - 2 * self.macs

    @property
    def model_flops(self) -> int:
        """FLOPs the model needs, whatever kernels did: no checkpointing, no attention scores computed once more."""
        return self.flops - self.recompute_flops - 2 * sum(
            op.recompute_macs for op in self.ops if op.phase != "recompute")

    def by_module(self, quantity: str = "flops") -> dict[str, int]:
        """Module path -> sum over its operators, submodules included; 0 for modules that did nothing."""
        sums = dict.fromkeys((module.path for module in self.modules), 0)
        for op in self.ops:
            for path in op.within:
                sums[path] += getattr(op, quantity)
        return sums

    def by_op(self, quantity: str = "flops") -> dict[str, int]:
        """Operator, like aten::mm -> sum; only those that have some, largest first."""
        return _sums(self.ops, lambda op: op.op, quantity)

    def by_kind(self, quantity: str = "elements") -> dict[str, int]:
        """Kind of operator, like norm or activation -> sum, largest first."""
        return _sums(self.ops, lambda op: op.kind, quantity)

    def by_module_and_op(self, quantity: str = "flops") -> dict[str, dict[str, int]]:
        """Module path -> operator -> sum, submodules included."""
        inside: dict[str, list[OpCount]] = {module.path: [] for module in self.modules}
        for op in self.ops:
            for path in op.within:
                inside[path].append(op)
        return {path: _sums(ops, lambda op: op.op, quantity) for path, ops in inside.items()}

    @cached_property
    def uncounted(self) -> tuple[Uncounted, ...]:
        """Operators that ran and whose work nobody knows, most bytes first."""
        found: dict[str, list[OpCount]] = defaultdict(list)
        for op in self.ops:
            if not op.counted:
                found[op.op].append(op)
        listed = (Uncounted(op=name, calls=sum(op.calls for op in ops), io_bytes=sum(op.io_bytes for op in ops))
                  for name, ops in found.items())
        return tuple(sorted(listed, key=lambda one: (-one.io_bytes, one.op)))

    @property
    def coverage_ratio(self) -> float:
        """Share of the bytes moved that operators moved whose work is known; 1.0 where nothing is unknown."""
        moved, unknown = self.total("io_bytes"), sum(one.io_bytes for one in self.uncounted)
        return 1 - unknown / moved if moved else float(not self.uncounted)

    def measured(self, path: str) -> Mapping[str, Any]:
        """Measured columns of a module by their keys; a count alone measures nothing."""
        return {}

    def measured_lines(self) -> tuple[tuple[str, str], ...]:
        """Label and text of what was measured of the whole call."""
        return ()

    def table(self, *, depth: int | None = 3, top: int | None = None, sort: str = "path",
              columns: Sequence[str] | None = None) -> Report:
        """The modules as a tree and all totals; `print` it.

        Args:
            depth: Levels below the root; None for all.
            top: Only this many modules, the largest by `sort`.
            sort: path (the order of the model), params, macs or flops; of a profile also fwd, bwd or time.
            columns: Keys of `distprof.reporters.columns.COLUMNS`; None for those that tell something.

        Raises:
            UsageError: There is no such order or column.
        """
        from distprof.reporters.count_report import count_report

        return count_report(self, View(depth=depth, top=top, sort=sort, columns=columns))

    def __str__(self) -> str:
        """The table as plain text of 120 columns."""
        return str(self.table())

    def __rich__(self) -> Report:
        return self.table()

    def __repr__(self) -> str:
        return (f"{type(self).__name__}(flops={self.flops}, macs={self.macs}, params={self.params.params}, "
                f"modules={len(self.modules)}, coverage_ratio={self.coverage_ratio:.3f})")

    def to_dict(self) -> dict[str, Any]:
        """Totals, uncounted operators, modules and operators, all of it plain JSON types.

        `distprof.reporters.schema` documents every key.
        """
        from distprof.reporters.count_dict import count_dict

        return count_dict(self)

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    def to_polars(self) -> Frames:
        """Frames `modules` and `ops` with the columns of `distprof.reporters.schema`."""
        from distprof.reporters.frames import count_frames

        return count_frames(self)

    def write_parquet(self, folder: str | Path) -> None:
        """Writes `modules.parquet` and `ops.parquet` into a folder; each column carries its documentation.

        Raises:
            OutputError: The folder cannot be written.
        """
        from distprof.reporters.parquet import write_counts

        write_counts(self, Path(folder))


def count(model: Any, *args: Any, backward: bool = False, **kwargs: Any) -> Counts:
    """Counts what one call of a model does, exactly, on any device (the meta device too, without memory).

    Model and process are left as they were: random state, buffers, gradients, training flags, hooks, compiled code.
    While torch functions are watched, `nn.MultiheadAttention` and `nn.TransformerEncoder` do in many operators what
    without gradients they may do in one: FLOPs are the same, bytes are those of the many.

    Where torch would leave the padding of a TransformerEncoder out (eval mode, no gradients, a padding mask), the call
    takes the path that computes it. On threads of the script's own, what modules do there counts, and no more.

    Args:
        model: A module, a bound method of one like `model.generate`, or a function that calls modules.
        *args: Positional arguments of the call.
        backward: Runs and counts backward as well, from ones for the gradient of every output.
        **kwargs: Keyword arguments of the call.

    Returns:
        FLOPs, MACs, bytes and parameters by module, operator and phase.

    Raises:
        UsageError: The model cannot be called, or backward has no gradient to begin with.
        FormulaError: A formula given to `register_flops` returned nonsense.
        Exception: What the model raises, with a note saying in which module.

    Example:
        >>> counts = distprof.count(model, torch.randn(1, 3, 224, 224), backward=True)
        >>> counts.flops, counts.by_module()["layer1"], counts.coverage_ratio
    """
    invocation = Invocation.of(model, args, kwargs, backward=backward)  # what is gathered from lives as long as this
    return gather(*watch(invocation))


def watch(invocation: Invocation) -> tuple[CountPass, ModuleMap]:
    """Runs a call once under a count pass; gives the pass and the modules it met. See `count` for errors."""
    modules, root = ModuleMap(), invocation.model
    if root is not None:
        modules.add_root(root)
    with undisturbed([root] if root is not None else []) as keep:
        scopes = ModuleScopes(modules, lambda function: function, lambda frame: keep(frame.module), one_thread=True)
        counting = CountPass(scopes, lambda: None, details=True)
        counting.start()
        try:
            invocation.run(scopes)
        finally:
            counting.stop()
        counting.next_step()
    if root is None and not modules.models and not counting.sums:
        raise UsageError("expected a call that runs operators, found none",
                         hint="give a model and its inputs, or a function that calls one")
    return counting, modules


def gather(counting: CountPass, modules: ModuleMap) -> Counts:
    """What a count pass saw, by module and operator; call while the modules are alive."""
    within = _within(counting)
    ops = tuple(_op_count(key, entry, within[key.path]) for key, entry in counting.sums.items())
    work = _work(ops)
    places = Counter(id(site.module()) for site in modules.sites())
    return Counts(
        ops=ops,
        modules=tuple(_module_count(site, work[site.path], counting, shared=places[id(site.module())] > 1)
                      for site in _in_tree_order(modules)),
        functions=dict(counting.functions.calls) if counting.functions is not None else {},
        params=_params(modules.roots()),
    )


@dataclass(slots=True)
class _Work:
    """What the operators inside a module did."""

    macs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    flops: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    elements: int = 0
    io_bytes: int = 0


def _within(counting: CountPass) -> dict[CallPath, frozenset[str]]:
    """The modules of every call path; one set for all operators of a path."""
    return {path: frozenset(site.path for site in path.sites()) for path in {key.path for key in counting.sums}}


def _work(ops: Iterable[OpCount]) -> Mapping[str, _Work]:
    """Module path -> sums over its operators, submodules included."""
    found: dict[str, _Work] = defaultdict(_Work)
    for op in ops:
        for path in op.within:
            work = found[path]
            work.macs[op.phase] += op.macs
            work.flops[op.phase] += op.flops
            work.elements += op.elements
            work.io_bytes += op.io_bytes
    return found


def _op_count(key: OpKey, entry: OpSum, within: frozenset[str]) -> OpCount:
    return OpCount(
        module_path=key.path.site.path if key.path.site is not None else None,
        within=within, op=key.op, phase=key.phase, shapes=key.shapes,
        dtype=key.dtype, functions=key.functions, calls=entry.calls,
        macs=entry.macs, flops=entry.flops, causal_macs=entry.causal_macs, recompute_macs=entry.recompute_macs,
        elements=entry.elements, estimate_flops=entry.estimate_flops, read_bytes=entry.read_bytes,
        write_bytes=entry.write_bytes, kind=entry.kind, counted=entry.counted, note=entry.note)


def _module_count(site: Site, work: _Work, counting: CountPass, *, shared: bool) -> ModuleCount:
    module = site.module()
    shapes = counting.shapes.get(site, ((), ()))
    return ModuleCount(
        path=site.path, class_name=site.class_name, depth=site.depth, calls=counting.calls.get(site, 0),
        params=_params([module] if module is not None else []),
        own_params=count_params(module.parameters(recurse=False), ALONE).params if module is not None else 0,
        input_shapes=shapes[0], output_shapes=shapes[1], macs=work.macs, flops=work.flops, elements=work.elements,
        io_bytes=work.io_bytes, shared=shared)


def _params(roots: list[nn.Module]) -> ParamCount:
    return count_params((p for root in roots for p in root.parameters()), ALONE,
                        (b for root in roots for b in root.buffers()))


def _in_tree_order(modules: ModuleMap) -> Iterator[Site]:
    """Parents first, then children in their order; sites that were found late stand beside their siblings."""
    below: dict[int | None, list[Site]] = defaultdict(list)
    for site in modules.sites():
        below[id(site.parent) if site.parent is not None else None].append(site)
    waiting = below[None][::-1]
    while waiting:
        site = waiting.pop()
        yield site
        waiting.extend(reversed(below[id(site)]))


def _sums(ops: Iterable[OpCount], key: Callable[[OpCount], str], quantity: str) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for op in ops:
        sums[key(op)] += getattr(op, quantity)
    return {name: value for name, value in sorted(sums.items(), key=lambda item: (-item[1], item[0])) if value}
