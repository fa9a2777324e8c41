"""FLOPs and MACs that DeepSpeed's flops profiler reports for a counted call, by function and module."""

from __future__ import annotations

from dataclasses import dataclass, replace

from distprof.counting.counts import Counts
from distprof.counting.torch_functions import FunctionCall
from distprof.peers.deepspeed_bugs import BUGS, is_ignored, quirk
from distprof.peers.deepspeed_formulas import RULES
from distprof.peers.peer_line import PeerLine
from distprof.peers.traced_ops import ATTENTION, fused_paths


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedLine(PeerLine):
    """Equal calls of one function by one module; `reason` is the convention in a few words, or the bug."""

    calls: int
    bug: str | None = None
    """Key of `BUGS` where the package counts something else than it means to."""
    raises: bool = False
    """True where the package raises; the numbers are those of the convention."""


def peer_lines(counts: Counts, *, exact: bool = True) -> list[DeepSpeedLine]:
    """One line for all equal calls of a function by a module.

    Args:
        counts: A counted call.
        exact: The numbers of DeepSpeed 0.19.8, bugs included. False: those that its convention means.
    """
    found = ((call, deepspeed_line(call, calls, exact=exact)) for call, calls in counts.functions.items())
    fused = fused_paths(counts.functions) if exact else frozenset()
    return [replace(line, flops=0, macs=0, reason=BUGS["fused_attention"], bug="fused_attention")
            if call.path in fused and call.outer == ATTENTION else line for call, line in found if line is not None]


def deepspeed_line(call: FunctionCall, calls: int, *, exact: bool) -> DeepSpeedLine | None:
    """The line of calls that are all equal; None for a function without a rule."""
    rule = RULES.get(call.name)
    if rule is None or is_ignored(call):
        return None
    amount, reason, bug, raises = rule.amount(call), rule.sentence, None, False
    found = quirk(call) if exact else None
    if found is not None:
        raises = found.amount is None
        amount, bug = found.amount or amount, found.bug
        reason = f"{BUGS[bug]}{': the package raises' if raises else ''}"
    return DeepSpeedLine(
        function=call.name, module_path=call.path.site.path if call.path.site is not None else None, calls=calls,
        flops=calls * amount[0], macs=calls * amount[1], reason=reason, bug=bug, raises=raises)
