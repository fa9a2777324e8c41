"""fvcore's flops for a counted call, line by line with what it loses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from distprof.counting.counts import Counts
from distprof.counting.torch_functions import FunctionCall
from distprof.peers.fvcore_rules import BUGS, CONTRACTIONS, ELEMENTWISE, FLOPS, NO_RULE, UNUSED
from distprof.peers.peer_line import OUTSIDE, PeerLine
from distprof.peers.traced_ops import FUSED_ATTENTION, TracedOp, traced_ops

CallSite = tuple[str, str | None]
"""A torch function and the module that called it."""
Counted = tuple[str, str | None, str]
"""The same, and the kind of its operator in a trace."""


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
    if not exact:
        return _right(_counted(counts.functions, ELEMENTWISE.keys()), ran)
    kinds = FLOPS.keys() | BUGS.keys()
    dropped = _counted(counts.unused, kinds)
    counted = Counter(_counted(counts.functions, kinds))
    counted.subtract(dropped)
    return _exact(counted, dropped, ran)


def _counted(functions: Mapping[FunctionCall, int], kinds: Collection[str]) -> dict[Counted, int]:
    """Flops of operators of these kinds."""
    sums: dict[Counted, int] = defaultdict(int)
    for traced in traced_ops(functions, FLOPS.__contains__):
        if traced.kind in kinds:
            path = traced.path.site.path if traced.path.site is not None else None
            result = FLOPS[traced.kind](traced.inputs, traced.outputs) if traced.kind in FLOPS else 0
            sums[traced.function, path, traced.kind] += traced.calls * sum(by_name(traced, result).values())
    return sums


def _right(counted: Mapping[Counted, int], ran: Mapping[CallSite, int]) -> list[PeerLine]:
    elementwise = [PeerLine(function=function, module_path=path, flops=flops, macs=0)
                   for (function, path, _), flops in counted.items()]
    return elementwise + [PeerLine(function=function, module_path=path, flops=macs, macs=macs)
                          for (function, path), macs in ran.items()]


def _exact(counted: Mapping[Counted, int], dropped: Mapping[Counted, int], ran: Mapping[CallSite, int],
           ) -> list[PeerLine]:
    lines = []
    for (function, path, kind), flops in counted.items():
        unused = dropped.get((function, path, kind), 0)
        is_right = kind in CONTRACTIONS and flops + unused == ran.get((function, path), 0)
        reasons = ["" if is_right else BUGS.get(kind, ""), UNUSED if unused and kind in CONTRACTIONS else ""]
        lines.append(PeerLine(function=function, module_path=path, flops=flops,
                              macs=flops if kind in CONTRACTIONS else 0, reason="; ".join(filter(None, reasons))))
    seen = {(line.function, line.module_path) for line in lines}
    fused = {path for _, path, kind in counted if kind == FUSED_ATTENTION}
    return lines + [PeerLine(function=function, module_path=path, flops=0, macs=0,
                             reason=BUGS[FUSED_ATTENTION] if path in fused else NO_RULE)
                    for function, path in ran if (function, path) not in seen]
