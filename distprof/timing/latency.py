"""Time of modules: measured per chain of callers, summed by module and phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from distprof.model.call_paths import CallPath
from distprof.model.modules import Site


class Share:
    """Time of one chain in one phase, without the modules called inside."""

    __slots__ = ("ns", "seen")

    def __init__(self) -> None:
        self.ns = 0
        self.seen = False

    def add(self, ns: int) -> None:
        self.ns += ns
        self.seen = True


class Chain(CallPath):
    """A module with its callers, and its times; a shared module has a chain per caller."""

    __slots__ = ("backward", "calls", "forward", "recompute", "repeats")

    def __init__(self, outer: Chain | None, site: Site | None) -> None:
        super().__init__(outer, site)
        self.calls = 0
        """Forward calls, recomputation apart."""
        self.forward, self.backward, self.recompute = Share(), Share(), Share()
        self.repeats = outer is not None and any(chain.site is site for chain in outer.outward())
        """True if the chain contains the module already: the inner module of a wrapper, or recursion."""

    def walk(self) -> Iterator[Chain]:
        """This chain and all longer ones that begin with it."""
        yield self
        for chain in self.children.values():
            yield from chain.walk()


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
        if chain.calls:  # else no entry is made
            found[chain.site].calls += chain.calls
        for phase, (inclusive, own) in PHASE_FIELDS.items():
            share: Share = getattr(chain, phase)
            if share.seen:
                for site in chain.sites():
                    for name, ns in ((inclusive, share.ns), (own, share.ns if site is chain.site else 0)):
                        setattr(found[site], name, (getattr(found[site], name) or 0) + ns)
    return dict(found)
