"""Chains of nested module calls and the time of each."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.model.call_paths import holders
from distprof.model.modules import Site


class Share:
    """Time of one chain in one phase, without the modules called inside."""

    __slots__ = ("ns", "seen")

    def __init__(self) -> None:
        self.ns = 0
        self.seen = False

    def add(self, ns: int) -> None:
        """Adds a duration."""
        self.ns += ns
        self.seen = True


class Chain:
    """A module with its callers. Equal chains are one object; a shared module has a chain per caller."""

    __slots__ = ("_inside", "backward", "calls", "forward", "outer", "recompute", "repeats", "site")

    def __init__(self, outer: Chain | None, site: Site | None) -> None:
        self.outer = outer
        self.site = site
        self.calls = 0
        """Forward calls, recomputation apart."""
        self.forward, self.backward, self.recompute = Share(), Share(), Share()
        self.repeats = site is not None and outer is not None and site in outer.sites()
        """True if the chain contains the module already: the inner module of a wrapper, or recursion."""
        self._inside: dict[Site, Chain] = {}

    def inside(self, site: Site) -> Chain:
        """The chain with one more module."""
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
        """Containers that hold modules of the chain without being called, like a ModuleList."""
        found: set[Site] = set()
        chain: Chain | None = self
        while chain is not None and chain.site is not None:
            found.update(holders(chain.outer.site if chain.outer is not None else None, chain.site))
            chain = chain.outer
        return found

    def walk(self) -> Iterator[Chain]:
        """This chain and all longer ones that begin with it."""
        yield self
        for chain in self._inside.values():
            yield from chain.walk()
