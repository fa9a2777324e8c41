"""fvcore's flops for a counted call, line by line with what it loses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from distprof.counting.counts import Counts
from distprof.peers.fvcore_rules import BUGS, CONTRACTIONS, ELEMENTWISE, FLOPS, NO_RULE
from distprof.peers.peer_line import OUTSIDE, PeerLine
from distprof.peers.traced_ops import FUSED_ATTENTION, TracedOp, traced_ops

CallSite = tuple[str, str | None]
"""A torch function and the module that called it."""


def by_name(op: TracedOp, result: Any) -> Counter[str]:
    """The result of a rule as a Counter; a plain number gets the name of the operator."""
    return result if isinstance(result, Counter) else Counter({op.kind.rpartition("::")[2]: result})


def peer_lines(counts: Counts, *, exact: bool = True) -> list[PeerLine]:
    """A line for each function of each module that fvcore counts, and one of 0 flops for each whose work it loses.

    Args:
        counts: A counted call.
        exact: The numbers of the real package. False: its convention, with every contraction counted as it ran.
    """
    ran: dict[CallSite, int] = defaultdict(int)
    for op in counts.ops:
        if op.macs and op.phase == "forward":
            ran[op.functions[-1] if op.functions else OUTSIDE, op.module_path] += op.macs
    counted: dict[tuple[str, str | None, str], int] = defaultdict(int)
    for traced in traced_ops(counts.functions, FLOPS.__contains__):
        path = traced.path.site.path if traced.path.site is not None else None
        if traced.kind in (FLOPS.keys() | BUGS.keys() if exact else ELEMENTWISE):
            result = FLOPS[traced.kind](traced.inputs, traced.outputs) if traced.kind in FLOPS else 0
            counted[traced.function, path, traced.kind] += traced.calls * sum(by_name(traced, result).values())
    return (_exact if exact else _right)(counted, ran)


def _right(counted: Mapping[tuple[str, str | None, str], int], ran: Mapping[CallSite, int]) -> list[PeerLine]:
    elementwise = [PeerLine(function=function, module_path=path, flops=flops, macs=0)
                   for (function, path, _), flops in counted.items()]
    return elementwise + [PeerLine(function=function, module_path=path, flops=macs, macs=macs)
                          for (function, path), macs in ran.items()]


def _exact(counted: Mapping[tuple[str, str | None, str], int], ran: Mapping[CallSite, int]) -> list[PeerLine]:
    lines = []
    for (function, path, kind), flops in counted.items():
        is_right = kind in CONTRACTIONS and flops == ran.get((function, path), 0)
        lines.append(PeerLine(function=function, module_path=path, flops=flops,
                              macs=flops if kind in CONTRACTIONS else 0,
                              reason="" if is_right else BUGS.get(kind, "")))
    seen = {(line.function, line.module_path) for line in lines}
    fused = {path for _, path, kind in counted if kind == FUSED_ATTENTION}
    return lines + [PeerLine(function=function, module_path=path, flops=0, macs=0,
                             reason=BUGS[FUSED_ATTENTION] if path in fused else NO_RULE)
                    for function, path in ran if (function, path) not in seen]
