"""`Counts` as text: the module tree, followed by totals, coverage and every operator that could not be counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distprof.reporters.tree import TreeRow, TreeView, paths_above
from distprof.reporters.tree_report import TreeReport
from distprof.units import counted, percent, si, size

if TYPE_CHECKING:
    from distprof.contract.rank_json import ParamCount
    from distprof.counting.counted_call import CountedCall, ModuleCount

FLOPS_COLUMNS = {"fwd_flops": "forward", "bwd_flops": "backward", "recompute_flops": "recompute"}
"""Column -> phase."""
TITLES = {"forward": "forward", "backward": "backward", "recompute": "recomputed"}
"""Phase -> word in the text."""


def count_report(counts: CountedCall, view: TreeView) -> TreeReport:
    """Returns a report with one row per module, called or not, and lines with totals."""
    total = counts.flops
    busy = {above for module in counts.modules if module.calls for above in (module.path, *paths_above(module.path))}
    rows = tuple(_row(module, counts.measured(module.path), total, idle=module.path not in busy)
                 for module in counts.modules)
    footer = (*_params(counts.params), *_work(counts), *counts.measured_lines(), *_other_work(counts),
              *_coverage(counts), *_notes(counts))
    return TreeReport(rows=rows, view=view, footer=footer)


def _row(module: ModuleCount, measured: Mapping[str, Any], total: int, *, idle: bool) -> TreeRow:
    work = {"macs": module.macs["forward"], **{key: module.flops[phase] for key, phase in FLOPS_COLUMNS.items()},
            "elements": module.elements, "io_bytes": module.io_bytes}
    flops = sum(work[key] for key in FLOPS_COLUMNS)
    return TreeRow(
        path=module.path, class_name=module.class_name,
        marks=("shared",) if module.shared else ("not called",) if idle else (),
        values={"input_shapes": module.input_shapes, "output_shapes": module.output_shapes, "calls": module.calls,
                "params": module.params.params, "trainable": trainable(module.params), **work,
                "flops_share": flops / total if total else None,
                "intensity": flops / work["io_bytes"] if work["io_bytes"] else None, **measured})


def trainable(params: ParamCount) -> str | None:
    """Returns the word True, False or Partial; None without parameters."""
    if not params.params:
        return None
    if params.trainable_params == params.params:
        return "True"
    return "Partial" if params.trainable_params else "False"


def number(value: int) -> str:
    """Formats a number: 25557032 -> "25,557,032 (25.56 M)"."""
    return f"{value:,} ({si(value)})" if value >= 1000 else str(value)


def _params(params: ParamCount) -> list[tuple[str, str]]:
    trained = {params.params: "all trainable", 0: "none trainable"}.get(
        params.trainable_params, f"{number(params.trainable_params)} trainable")
    dtypes = ", ".join(params.dtypes) if len(params.dtypes) == 1 else ", ".join(
        f"{name} {si(amount)}" for name, amount in params.dtypes.items())
    parts = [number(params.params), *([trained, dtypes, size(params.param_bytes)] if params.params else [])]
    if params.stored_params != params.params:
        parts.append(f"{number(params.stored_params)} stored on this rank")
    lines = [("params", ", ".join(parts))]
    if params.buffers:
        lines.append(("buffers", f"{number(params.buffers)}, {size(params.buffer_bytes)}"))
    return lines


def _work(counts: CountedCall) -> list[tuple[str, str]]:
    ran = [phase for phase in TITLES if phase == "forward" or any(op.phase == phase for op in counts.ops)]
    least = "at least " if counts.uncounted else ""
    lines = [(title, f"{least}{_by_phase(counts, quantity, ran)}")
             for title, quantity in (("MACs", "macs"), ("FLOPs", "flops"))]
    if counts.model_flops != counts.flops:
        lines.append(("model FLOPs", f"{least}{number(counts.model_flops)}: excluding recomputation and the scores "
                                     "that a fused attention backward recomputes"))
    if counts.causal_flops != counts.flops:
        lines.append(("causal FLOPs", f"{least}{number(counts.causal_flops)}: excluding what causal masks hide, which "
                                      "the FLOPs above include"))
    return lines


def _by_phase(counts: CountedCall, quantity: str, ran: list[str]) -> str:
    parts = [f"{TITLES[phase]} {number(counts.total(quantity, phase))}" for phase in ran]
    return ", ".join(parts if len(ran) == 1 else [*parts, f"all {number(counts.total(quantity))}"])


def _other_work(counts: CountedCall) -> list[tuple[str, str]]:
    kinds = ", ".join(f"{kind} {si(amount)}" for kind, amount in counts.by_kind("elements").items())
    estimate = counts.total("estimate_flops")
    read, written = counts.total("read_bytes"), counts.total("write_bytes")
    split = f", read {size(read)}, written {size(written)}" if written else ""
    return [
        *([("elements", f"{kinds}: processed by operators other than contractions; these are "
                        "not FLOPs")] if kinds else []),
        *([("estimated", f"about {si(estimate)} FLOPs of {', '.join(counts.by_op('estimate_flops'))}: a rough "
                         "estimate, not in the FLOPs above")] if estimate else []),
        ("bytes moved", f"{size(read + written)}{split}: each tensor once per call"),
    ]


def _coverage(counts: CountedCall) -> list[tuple[str, str]]:
    ratio = f"{percent(counts.coverage_ratio)} of the bytes moved are moved by counted operators"
    if not counts.uncounted:
        return [("coverage", f"{ratio}; every operator is counted")]
    number_of = f"{counted(len(counts.uncounted), 'operator')} {'is' if len(counts.uncounted) == 1 else 'are'}"
    lines = [("coverage", f"{ratio}; {number_of} uncounted:")]
    width = max(len(one.op) for one in counts.uncounted)
    return lines + [("", f"{one.op:<{width}}  {counted(one.calls, 'call')}, "
                     f"{size(one.io_bytes)}") for one in counts.uncounted]


def _notes(counts: CountedCall) -> list[tuple[str, str]]:
    """Returns what counts are based on, besides shapes."""
    noted: dict[str, set[str]] = defaultdict(set)
    for op in counts.ops:
        if op.note:
            noted[op.note].add(op.op)
    return [("note", f"{', '.join(sorted(ops))}: {note}") for note, ops in noted.items()]
