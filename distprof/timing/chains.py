"""Chains of running modules: what runs inside what comes in, time by module, self and inclusive, goes out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from distprof.model.call_paths import holders
from distprof.model.modules import Site


class Share:
    """Time of one chain in one phase, without that of the modules inside."""

    __slots__ = ("ns", "seen")

    def __init__(self) -> None:
        self.ns = 0
        self.seen = False

    def add(self, ns: int) -> None:
        """Takes in a stretch of time."""
        self.ns += ns
        self.seen = True


class Chain:
    """A module and those that called it, each chain kept once; a shared module has one for each caller."""

    __slots__ = ("_inside", "backward", "calls", "forward", "outer", "recompute", "repeats", "site")

    def __init__(self, outer: Chain | None, site: Site | None) -> None:
        self.outer = outer
        self.site = site
        self.calls = 0
        """Forward calls, recomputation apart."""
        self.forward, self.backward, self.recompute = Share(), Share(), Share()
        self.repeats = site is not None and outer is not None and site in outer.sites()
        """True where the same module runs already: a wrapper's inner module, a recursion."""
        self._inside: dict[Site, Chain] = {}

    def inside(self, site: Site) -> Chain:
        """This chain and one module more."""
        chain = self._inside.get(site)
        if chain is None:
            chain = self._inside[site] = Chain(self, site)
        return chain

    def sites(self) -> set[Site]:
        """The modules of the chain, each once."""
        found: set[Site] = set()
        chain: Chain | None = self
        while chain is not None and chain.site is not None:
            found.add(chain.site)
            chain = chain.outer
        return found

    def containers(self) -> set[Site]:
        """What holds modules of the chain without being called: a ModuleList."""
        found: set[Site] = set()
        chain: Chain | None = self
        while chain is not None and chain.site is not None:
            found.update(holders(chain.outer.site if chain.outer is not None else None, chain.site))
            chain = chain.outer
        return found

    def walk(self) -> Iterator[Chain]:
        """This chain and all that go on from it."""
        yield self
        for chain in self._inside.values():
            yield from chain.walk()


@dataclass(slots=True, kw_only=True)
class Latency:
    """Time of one module in ns; None for a phase that it did not take part in.

    Inclusive times hold the modules called inside, self times do not: the self times of a model add up to the
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
        """The same per step or per run."""
        times = {name: getattr(self, name) for name in TIMES}
        return Latency(calls=self.calls / divisor, **{
            name: None if time is None else time / divisor for name, time in times.items()})


COLUMNS = {"forward": ("fwd_ns", "fwd_self_ns"), "backward": ("bwd_ns", "bwd_self_ns"),
           "recompute": ("recompute_ns", "recompute_self_ns")}
"""Phase -> inclusive and self time."""
TIMES = tuple(name for names in COLUMNS.values() for name in names)


def latencies(chains: Iterable[Chain]) -> dict[Site, Latency]:
    """Sums over chains; a module that stands in a chain twice counts it once."""
    found: dict[Site, Latency] = defaultdict(Latency)
    for chain in chains:
        if chain.site is None:
            continue
        if chain.calls:
            found[chain.site].calls += chain.calls
        for phase, (inclusive, own) in COLUMNS.items():
            share: Share = getattr(chain, phase)
            if share.seen:
                for site in chain.sites() | chain.containers():
                    _add(found[site], inclusive, share.ns)
                    _add(found[site], own, share.ns if site is chain.site else 0)
    return dict(found)


def _add(latency: Latency, name: str, ns: int) -> None:
    setattr(latency, name, (getattr(latency, name) or 0) + ns)
