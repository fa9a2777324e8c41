"""`distprof.count`: FLOPs, MACs, bytes and parameters of one call of a model, as text, JSON and tables."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.contract.tables import PHASES
from distprof.counting.count_pass import CountPass
from distprof.counting.counted_call import CountedCall, ModuleCount, OpCount
from distprof.counting.data_flow import DataFlow
from distprof.counting.invocation import Invocation
from distprof.counting.step_sums import OpKey
from distprof.errors import UsageError
from distprof.model.isolation import undisturbed
from distprof.model.modules import ModuleMap, Site
from distprof.model.params import ParamCounter
from distprof.model.scopes import ModuleScopes
from distprof.process.topology import Topology
from distprof.reporters.tree import TreeView
from distprof.shape_formulas.operator_call import Cost

if TYPE_CHECKING:
    from distprof.reporters.count_schema import Frames
    from distprof.reporters.tree_report import TreeReport


@dataclass(frozen=True, kw_only=True, repr=False)
class Counts(CountedCall):
    """Everything that ran in one call of a model.

    FLOPs are 2 x MACs of contractions (matrix products, convolutions, attention, recurrent layers) on the shapes of
    this process; attention masks do not reduce them. Elementwise work is listed separately, by kind.
    """

    def table(self, *, depth: int | None = 3, top: int | None = None, sort: str = "path",
              columns: Sequence[str] | None = None) -> TreeReport:
        """Returns the modules as a tree, and all totals; `print` it.

        Args:
            depth: Levels below the root; None for all.
            top: Only this many modules, the largest by `sort`.
            sort: path (the order of the model), params, macs or flops; for a profile also fwd, bwd or time.
            columns: Keys of `distprof.reporters.tree_report.TREE_COLUMNS`; None for all that are informative.

        Raises:
            UsageError: The order or a column is unknown.
        """
        from distprof.reporters.count_report import count_report

        return count_report(self, TreeView(depth=depth, top=top, sort=sort, columns=columns))

    def __str__(self) -> str:
        """Returns the table as plain text, 120 characters wide."""
        return str(self.table())

    def __rich__(self) -> TreeReport:
        return self.table()

    def to_dict(self) -> dict[str, Any]:
        """Returns totals, uncounted operators, modules and operators as plain JSON types.

        `distprof.reporters.count_schema` documents every key.
        """
        from distprof.reporters.count_schema import count_dict

        return count_dict(self)

    def to_json(self, *, indent: int | None = None) -> str:
        """Returns `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent)

    def to_polars(self) -> Frames:
        """Returns data frames `modules` and `ops` with the columns of `distprof.reporters.count_schema`."""
        from distprof.reporters.count_schema import count_frames

        return count_frames(self)

    def write_parquet(self, folder: str | Path) -> None:
        """Writes `modules.parquet` and `ops.parquet` to a folder; the metadata of each column documents it.

        Raises:
            OutputError: The folder cannot be written.
        """
        from distprof.reporters.count_schema import write_counts

        write_counts(self, Path(folder))


ONE_PROCESS = Topology(sizes={}, coordinates={}, source="one process", basis="given")


def count(model: Callable[..., Any], *args: Any, backward: bool = False, **kwargs: Any) -> Counts:
    """Counts the work of one model call exactly, on any device (on the meta device without memory).

    Random state, buffers, gradients, training flags, hooks and compiled code are left unchanged. While counting,
    `nn.MultiheadAttention` and `nn.TransformerEncoder` never use their fused inference path: FLOPs are the same, bytes
    are those of the unfused operators, and padding that an encoder's fused path skips (eval mode, no gradients, a
    padding mask) is computed and counted. On other threads of the script, only work inside modules counts.

    Args:
        model: A module, a bound method of a module such as `model.generate`, or a function that calls modules.
        *args: Positional arguments of the call.
        backward: Whether to also run and count backward, with ones as the gradient of every output.
        **kwargs: Keyword arguments of the call.

    Returns:
        FLOPs, MACs, bytes and parameters by module, operator and phase.

    Raises:
        UsageError: The model cannot be called, or no output has a gradient for backward.
        FormulaError: A formula given to `register_flops` raised or did not return an int >= 0.
        Exception: Whatever the model raises, with a note that names the module.

    Example:
        >>> counts = distprof.count(model, torch.randn(1, 3, 224, 224), backward=True)
        >>> counts.flops, counts.by_module()["layer1"], counts.coverage_ratio
    """
    invocation = Invocation.of(model, args, kwargs, backward=backward)  # keeps the modules alive for summing
    return summed(*run_counted(invocation))


def count_with_unused(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Counts:
    """Like `count`, forward only; `Counts.unused` has the calls whose results nothing used."""
    invocation, flow = Invocation.of(model, args, kwargs, backward=False), DataFlow()
    found = summed(*run_counted(invocation, flow))
    return replace(found, unused=flow.unused_calls)


def run_counted(invocation: Invocation, flow: DataFlow | None = None) -> tuple[CountPass, ModuleMap]:
    """Runs a call once under a count pass; returns the pass and the modules that ran. See `count` for errors."""
    modules, root = ModuleMap(), invocation.model
    if root is not None:
        modules.add_root(root)
    with undisturbed([root] if root is not None else []) as keep:
        scopes = ModuleScopes(modules, lambda function: function, lambda frame: keep(frame.module),
                              one_thread=root is not None)
        counting = CountPass(scopes, lambda: None, details=True, flow=flow)
        counting.is_real = invocation.is_real
        counting.start()
        try:
            result = invocation.run(scopes)
        finally:
            counting.stop()
        if flow is not None:
            flow.end(result)
        counting.next_step()
    if root is None and not modules.models and not counting.sums:
        raise UsageError("the call ran no operators",
                         hint="pass a model and its inputs, or a function that calls one")
    return counting, modules


def summed(counting: CountPass, modules: ModuleMap) -> Counts:
    """Returns the counts of a count pass by module and operator; call it while the modules are alive."""
    names = cache(_path_of)
    within = {path: frozenset(map(names, path.sites())) for path in {key.path for key in counting.sums}}
    ops = tuple(_op_count(key, entry, within[key.path]) for key, entry in counting.sums.items())
    work = _work(ops)
    calls = counting.calls
    places = Counter(id(site.module()) for site in modules.sites())
    params = ParamCounter(modules.roots(), ONE_PROCESS)
    return Counts(
        ops=ops,
        modules=tuple(_module_count(site, work[site.path], counting, params, calls=calls.get(site, 0),
                                    shared=places[id(site.module())] > 1)
                      for site in _in_tree_order(modules)),
        functions=counting.functions.calls if counting.functions is not None else {},
        params=params.below(modules.roots()),
    )


@dataclass(slots=True)
class _Work:
    """Work of the operators inside a module."""

    macs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    flops: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    elements: int = 0
    io_bytes: int = 0


def _work(ops: Iterable[OpCount]) -> Mapping[str, _Work]:
    """Returns module path -> sums over its operators, including those of submodules."""
    together: dict[tuple[frozenset[str], str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for op in ops:  # first sum by set of modules: there are fewer of these sets than operators
        sums = together[op.within, op.phase]
        sums[0] += op.macs
        sums[1] += op.flops
        sums[2] += op.elements
        sums[3] += op.read_bytes + op.write_bytes
    found: dict[str, _Work] = defaultdict(_Work)
    for (within, phase), (macs, flops, elements, io_bytes) in together.items():
        for path in within:
            work = found[path]
            work.macs[phase] += macs
            work.flops[phase] += flops
            work.elements += elements
            work.io_bytes += io_bytes
    return found


def _path_of(site: Site) -> str:
    return site.path


def _op_count(key: OpKey, entry: Cost, within: frozenset[str]) -> OpCount:
    return OpCount(
        module_path=key.path.site.path if key.path.site is not None else None,
        within=within, op=key.op, phase=key.phase, shapes=key.shapes,
        dtype=key.dtype, functions=key.functions, kernel=key.kernel, calls=entry.calls,
        macs=entry.macs, flops=entry.flops, causal_macs=entry.causal_macs, recompute_macs=entry.recompute_macs,
        elements=entry.elements, estimate_flops=entry.estimate_flops, read_bytes=entry.read_bytes,
        write_bytes=entry.write_bytes, kind=entry.kind, counted=entry.counted, note=entry.note)


def _module_count(site: Site, work: _Work, counting: CountPass, params: ParamCounter, *, calls: int,
                  shared: bool) -> ModuleCount:
    module = site.module()
    shapes = counting.shapes.get(site, ((), ()))
    return ModuleCount(
        path=site.path, class_name=site.class_name, depth=site.depth, calls=calls,
        params=params.below([module] if module is not None else []),
        own_params=params.own(module) if module is not None else 0,
        input_shapes=shapes[0], output_shapes=shapes[1], macs=work.macs, flops=work.flops, elements=work.elements,
        io_bytes=work.io_bytes, shared=shared)


def _in_tree_order(modules: ModuleMap) -> Iterator[Site]:
    """Yields parents before children; sites that were found late come next to their siblings."""
    below: dict[int | None, list[Site]] = defaultdict(list)
    for site in modules.sites():
        below[id(site.parent) if site.parent is not None else None].append(site)
    waiting = below[None][::-1]
    while waiting:
        site = waiting.pop()
        yield site
        waiting.extend(reversed(below[id(site)]))
