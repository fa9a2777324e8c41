"""Lines below the module tree of `Counts`: totals, coverage, and every operator that could not be counted."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from distprof.units import percent, si, size

if TYPE_CHECKING:
    from distprof.contract.rank_json import ParamCount
    from distprof.counting.counts import Counts

TITLES = {"forward": "forward", "backward": "backward", "recompute": "recomputed"}
"""Phase -> its word in the text."""


def count_totals(counts: Counts) -> tuple[tuple[str, str], ...]:
    """Label and text of every line."""
    return (*_params(counts.params), *_work(counts), *counts.measured_lines(), *_other_work(counts),
            *_coverage(counts), *_notes(counts))


def number(value: int) -> str:
    """25557032 -> "25,557,032 (25.56 M)"."""
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


def _work(counts: Counts) -> list[tuple[str, str]]:
    ran = [phase for phase in TITLES if phase == "forward" or any(op.phase == phase for op in counts.ops)]
    lines = [(title, _by_phase(counts, quantity, ran)) for title, quantity in (("MACs", "macs"), ("FLOPs", "flops"))]
    if counts.model_flops != counts.flops:
        lines.append(("model FLOPs", f"{number(counts.model_flops)}: without recomputation and "
                      "without the scores that a fused attention backward recomputes"))
    if counts.causal_flops != counts.flops:
        lines.append(("causal FLOPs", f"{number(counts.causal_flops)}: without what causal masks hide; the FLOPs above "
                      "include it"))
    return lines


def _by_phase(counts: Counts, quantity: str, ran: list[str]) -> str:
    parts = [f"{TITLES[phase]} {number(counts.total(quantity, phase))}" for phase in ran]
    return ", ".join(parts if len(ran) == 1 else [*parts, f"all {number(counts.total(quantity))}"])


def _other_work(counts: Counts) -> list[tuple[str, str]]:
    kinds = ", ".join(f"{kind} {si(amount)}" for kind, amount in counts.by_kind("elements").items())
    estimate = counts.total("estimate_flops")
    read, written = counts.total("read_bytes"), counts.total("write_bytes")
    split = f", read {size(read)}, written {size(written)}" if written else ""
    return [
        *([("elements", f"{kinds}: processed by operators other than contractions, not FLOPs")] if kinds else []),
        *([("estimated", f"about {si(estimate)} FLOPs of {', '.join(counts.by_op('estimate_flops'))}: roughly known, "
            "not in the FLOPs above")] if estimate else []),
        ("bytes moved", f"{size(read + written)}{split}: each tensor of a call once"),
    ]


def _coverage(counts: Counts) -> list[tuple[str, str]]:
    ratio = f"{percent(counts.coverage_ratio)} of the bytes are moved by counted operators"
    if not counts.uncounted:
        return [("coverage", f"{ratio}; no operator is uncounted")]
    number_of = "1 operator is" if len(counts.uncounted) == 1 else f"{len(counts.uncounted)} operators are"
    lines = [("coverage", f"{ratio}; {number_of} uncounted:")]
    width = max(len(one.op) for one in counts.uncounted)
    return lines + [("", f"{one.op:<{width}}  {one.calls} {'call' if one.calls == 1 else 'calls'}, "
                     f"{size(one.io_bytes)}") for one in counts.uncounted]


def _notes(counts: Counts) -> list[tuple[str, str]]:
    """What counts are based on besides shapes."""
    noted: dict[str, set[str]] = defaultdict(set)
    for op in counts.ops:
        if op.note:
            noted[op.note].add(op.op)
    return [("note", f"{', '.join(sorted(ops))}: {note}") for note, ops in noted.items()]
