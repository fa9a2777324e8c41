"""Time of a module by phase, with and without the modules called inside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from distprof.model.modules import Site
from distprof.timing.call_chains import Chain, Share


@dataclass(slots=True, kw_only=True)
class Latency:
    """Time of one module in ns; None for a phase in which it did not run.

    Inclusive times contain the modules called inside, self times do not: the self times of a model add up to the
    inclusive time of its root.
    """

    calls: float = 0
    """Forward calls, recomputation apart."""
    fwd_ns: float | None = None
    fwd_self_ns: float | None = None
    bwd_ns: float | None = None
    """Without recomputation, which is forward work."""
    bwd_self_ns: float | None = None
    recompute_ns: float | None = None
    """Forward work repeated inside backward: activation checkpointing."""
    recompute_self_ns: float | None = None

    def over(self, divisor: int) -> Latency:
        """The latency per step or per run."""
        times = {name: getattr(self, name) for name in TIME_FIELDS}
        return Latency(calls=self.calls / divisor, **{
            name: None if time is None else time / divisor for name, time in times.items()})


PHASE_FIELDS = {"forward": ("fwd_ns", "fwd_self_ns"), "backward": ("bwd_ns", "bwd_self_ns"),
           "recompute": ("recompute_ns", "recompute_self_ns")}
"""Phase -> fields of inclusive and self time."""
TIME_FIELDS = tuple(name for names in PHASE_FIELDS.values() for name in names)


def latencies(chains: Iterable[Chain]) -> dict[Site, Latency]:
    """Latency per module, summed over chains; a module that occurs in a chain twice counts it once."""
    found: dict[Site, Latency] = defaultdict(Latency)
    for chain in chains:
        if chain.site is None:
            continue
        if chain.calls:
            found[chain.site].calls += chain.calls
        for phase, (inclusive, own) in PHASE_FIELDS.items():
            share: Share = getattr(chain, phase)
            if share.seen:
                for site in chain.sites() | chain.containers():
                    _add(found[site], inclusive, share.ns)
                    _add(found[site], own, share.ns if site is chain.site else 0)
    return dict(found)


def _add(latency: Latency, name: str, ns: int) -> None:
    setattr(latency, name, (getattr(latency, name) or 0) + ns)
