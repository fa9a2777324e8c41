"""What DeepSpeed's flops profiler would say: our record of a call comes in, its FLOPs and MACs per function go out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from distprof.counting.counts import Counts
from distprof.counting.functions import FunctionCall
from distprof.peers.deepspeed_bugs import BUGS, is_ignored, quirk
from distprof.peers.deepspeed_formulas import RULES
from distprof.peers.jit import ATTENTION, fused_paths
from distprof.peers.line import PeerLine


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedLine(PeerLine):
    """Equal calls of one function by one module; `reason` is the convention in a few words, or what is wrong here."""

    calls: int
    bug: str | None = None
    """Key of `BUGS` where the package counts something else than it means to."""
    raises: bool = False
    """True where the package raises; the numbers are those of the convention."""


def view(counts: Counts, *, exact: bool = True) -> list[DeepSpeedLine]:
    """DeepSpeed's counting of a forward call.

    Args:
        counts: What `distprof.count` gave.
        exact: What DeepSpeed 0.19.8 prints, bugs included; else what its convention means.
    """
    found = ((call, line_of(call, calls, exact=exact)) for call, calls in counts.functions.items())
    fused = fused_paths(counts.functions) if exact else frozenset()
    return [_unseen(line) if call.path in fused and call.outer == ATTENTION else line
            for call, line in found if line is not None]


def _unseen(line: DeepSpeedLine) -> DeepSpeedLine:
    return replace(line, flops=0, macs=0, reason=BUGS["fused_attention"], bug="fused_attention")


def line_of(call: FunctionCall, calls: int, *, exact: bool) -> DeepSpeedLine | None:
    """One kind of call; None for a function without a rule."""
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
