"""Times of modules: measured per call path, summed by module and phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from distprof.model.call_paths import CallPath
from distprof.model.modules import Site


class Share:
    """Time of one call path in one phase, without the modules called inside."""

    __slots__ = ("ns", "seen")

    def __init__(self) -> None:
        self.ns = 0
        self.seen = False

    def add(self, ns: int) -> None:
        self.ns += ns
        self.seen = True


class Chain(CallPath):
    """A call path (a module and its callers) with its times; a shared module has one per caller."""

    __slots__ = ("backward", "calls", "forward", "recompute", "repeats")

    def __init__(self, outer: Chain | None, site: Site | None) -> None:
        super().__init__(outer, site)
        self.calls = 0
        """Number of forward calls, not counting recomputation."""
        self.forward, self.backward, self.recompute = Share(), Share(), Share()
        self.repeats = outer is not None and any(chain.site is site for chain in outer.outward())
        """True if the path already contains this module: the inner module of a wrapper, or recursion."""

    def walk(self) -> Iterator[Chain]:
        """Yields this call path and all longer ones that begin with it."""
        yield self
        for chain in self.children.values():
            yield from chain.walk()


@dataclass(slots=True, kw_only=True)
class Latency:
    """Times of one module in ns; None for a phase in which it did not run.

    Inclusive times contain the modules called inside, self times do not: the self times of a model add up to the
    inclusive time of its root.
    """

    calls: float = 0
    """Number of forward calls, not counting recomputation."""
    fwd_ns: float | None = None
    fwd_self_ns: float | None = None
    bwd_ns: float | None = None
    """Without recomputation, which is forward work."""
    bwd_self_ns: float | None = None
    recompute_ns: float | None = None
    """Forward work repeated inside backward: activation checkpointing."""
    recompute_self_ns: float | None = None

    def over(self, divisor: int) -> Latency:
        """Returns these times divided by a number of steps or runs."""
        times = {name: getattr(self, name) for name in TIME_FIELDS}
        return Latency(calls=self.calls / divisor, **{
            name: None if time is None else time / divisor for name, time in times.items()})


PHASE_FIELDS = {"forward": ("fwd_ns", "fwd_self_ns"), "backward": ("bwd_ns", "bwd_self_ns"),
                "recompute": ("recompute_ns", "recompute_self_ns")}
"""Phase -> fields of inclusive and self time."""
TIME_FIELDS = tuple(name for names in PHASE_FIELDS.values() for name in names)


def latencies(chains: Iterable[Chain]) -> dict[Site, Latency]:
    """Returns times per module, summed over call paths; a module that occurs twice in a path counts its time once."""
    found: dict[Site, Latency] = defaultdict(Latency)
    for chain in chains:
        if chain.site is None:
            continue
        if chain.calls:  # otherwise no entry is created
            found[chain.site].calls += chain.calls
        for phase, (inclusive, own) in PHASE_FIELDS.items():
            share: Share = getattr(chain, phase)
            if share.seen:
                for site in chain.sites():
                    for name, ns in ((inclusive, share.ns), (own, share.ns if site is chain.site else 0)):
                        setattr(found[site], name, (getattr(found[site], name) or 0) + ns)
    return dict(found)
