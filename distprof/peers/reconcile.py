"""Explains the difference between distprof's FLOPs and those of another counter, function by function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape

from distprof.counting.count import Counts, count_with_unused
from distprof.counting.counted_call import OpCount
from distprof.errors import UsageError
from distprof.peers import deepspeed, fvcore, ptflops
from distprof.peers.traced_ops import OUTSIDE, PeerLine
from distprof.terminal import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another counter."""

    lines: Callable[[Counts], Sequence[PeerLine]]
    """Lists what the real package counts in the forward part of a counted call, including its bugs."""
    unit: str
    """Unit of the peer's total: flops are 2 per MAC, macs are 1."""


PEERS = {
    "deepspeed": Peer(lines=deepspeed.peer_lines, unit="flops"),
    "fvcore": Peer(lines=fvcore.peer_lines, unit="macs"),
    "ptflops": Peer(lines=ptflops.peer_lines, unit="macs"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A torch function that the two counters count differently."""

    function: str
    ours: int
    theirs: int
    reason: str

    @property
    def difference(self) -> int:
        """`theirs` - `ours`."""
        return self.theirs - self.ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """Our total + all differences = the peer's total, exactly."""

    peer: str
    unit: str
    """flops (2 per MAC) or macs (1 per MAC, whatever the peer calls them)."""
    ours: int
    """distprof's total: contractions of the forward call."""
    theirs: int
    """The total that the peer prints for the same call, including its bugs."""
    differences: tuple[Difference, ...]
    """Largest first."""

    def __rich__(self) -> str:
        return escape(str(self))

    def __str__(self) -> str:
        width = max((len(visible(line.function)) for line in self.differences), default=0)
        width = max(width, len(self.peer) + 8, 24)
        rows = [f"{'distprof':<{width}}  {self.ours:>24,} {self.unit}"]
        rows += [f"{visible(line.function):<{width}}  {line.difference:>+24,} {visible(line.reason)}"
                 for line in self.differences]
        return "\n".join([*rows, f"{self.peer:<{width}}  {self.theirs:>24,} {self.unit}"])

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data."""
        return {"peer": self.peer, "unit": self.unit, "ours": self.ours, "theirs": self.theirs,
                "differences": [{"function": line.function, "ours": line.ours, "theirs": line.theirs,
                                 "difference": line.difference, "reason": line.reason} for line in self.differences]}


def reconcile(model: Callable[..., Any], *args: Any, peer: str = "deepspeed", **kwargs: Any) -> Reconciliation:
    """Explains exactly why another counter gives a different total for the same forward call.

    The peer does not have to be installed.

    Args:
        model: As for `distprof.count`.
        *args: Positional arguments of the call.
        peer: deepspeed, fvcore or ptflops (its aten backend).
        **kwargs: Keyword arguments of the call.

    Raises:
        UsageError: The peer is unknown.
    """
    known_peer(peer)
    return reconcile_counts(count_with_unused(model, *args, **kwargs), peer)


def known_peer(name: str) -> Peer:
    """Returns the peer with this name.

    Raises:
        UsageError: The name is unknown.
    """
    if name not in PEERS:
        raise UsageError(f"unknown counter {name!r}", hint=f"one of {', '.join(PEERS)}")
    return PEERS[name]


def reconcile_counts(counts: Counts, peer: str) -> Reconciliation:
    """Like `reconcile`, for a call that `count_with_unused` has counted."""
    other = known_peer(peer)
    theirs: dict[str, int] = defaultdict(int)
    reasons: dict[str, list[str]] = defaultdict(list)
    for line in other.lines(counts):
        theirs[line.function] += line.flops
        if line.reason and line.reason not in reasons[line.function]:
            reasons[line.function].append(line.reason)
    ours = _ours(counts, other.unit, theirs)
    differences = [
        Difference(function=name, ours=ours.get(name, 0), theirs=theirs.get(name, 0),
                   reason="; ".join(reasons[name]) or _reason(ours.get(name, 0), theirs.get(name, 0), peer))
        for name in {*ours, *theirs} if ours.get(name, 0) != theirs.get(name, 0)]
    return Reconciliation(
        peer=peer, unit=other.unit, ours=sum(ours.values()), theirs=sum(theirs.values()),
        differences=tuple(sorted(differences, key=lambda line: (-abs(line.difference), line.function))))


def _ours(counts: Counts, unit: str, theirs: Mapping[str, int]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for op in counts.ops:
        if op.phase == "forward" and op.kind == "contraction":
            sums[_function(op, theirs)] += getattr(op, unit)
    return sums


def _function(op: OpCount, theirs: Mapping[str, int]) -> str:
    """Returns the innermost running function that the peer counts, or else the innermost one."""
    known = [name for name in op.functions if name in theirs]
    return (known or [OUTSIDE, *op.functions])[-1]


def _reason(ours: int, theirs: int, peer: str) -> str:
    if not theirs:
        return f"contractions not counted by {peer}"
    return f"elementwise work added by {peer}" if not ours else f"{peer} uses a different formula"
