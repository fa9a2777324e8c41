"""Ranks that send to each other, as chains: the stages of a pipeline one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chains:
    """Who is linked with whom."""

    neighbours: Mapping[int, frozenset[int]]

    def components(self) -> list[Group]:
        """Ranks that are linked, directly or by others."""
        found, seen = list[Group](), set[int]()
        for rank in sorted(self.neighbours):
            if rank not in seen:
                reached = self._reached(rank)
                seen |= reached
                found.append(tuple(sorted(reached)))
        return found

    def _reached(self, rank: int) -> set[int]:
        reached, new = {rank}, {rank}
        while new:
            new = {other for one in new for other in self.neighbours[one]} - reached
            reached |= new
        return reached

    def ordered(self, first: Collection[int]) -> list[Group] | None:
        """Each component from its first rank on.

        Args:
            first: Ranks of which one begins each component.

        Returns:
            None where a component is no chain, and no ring, that one of these ranks begins.
        """
        chains = [self._from_end(component, first) for component in self.components()]
        return None if any(chain is None for chain in chains) else [chain for chain in chains if chain is not None]

    def _from_end(self, component: Group, first: Collection[int]) -> Group | None:
        ends = [rank for rank in component if len(self.neighbours[rank]) == 1]
        begins = [rank for rank in ends or component if rank in first]
        if len(begins) != 1 or len(ends) not in (0, 2) or any(len(self.neighbours[rank]) > 2 for rank in component):
            return None
        chain = [begins[0]]
        while len(chain) < len(component):
            following = sorted(self.neighbours[chain[-1]] - {*chain})
            if not following:
                return None
            # around a ring of stages ranks go up, unless both neighbours are lower
            chain.append(next((rank for rank in following if rank > chain[-1]), following[0]))
        return tuple(chain)


def chains_of(links: Iterable[Group]) -> Chains:
    """The chains that links make."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for one, other in links:
        neighbours[one].add(other)
        neighbours[other].add(one)
    return Chains({rank: frozenset(others) for rank, others in neighbours.items()})
