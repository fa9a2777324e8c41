"""Infers the only topology that the evidence allows, or why there is none.

Ranks that hold equal values are replicas; if they exchange activations nevertheless, they share the input (context
parallel). Ranks that hold different values are pipeline stages if they send to each other, hold different experts if
they do an all_to_all, and hold parts of the same layers if they join results.

Ranks that send to each other form chains: the stages of a pipeline, one after the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from distprof.contract.mesh import in_rank_order
from distprof.contract.problems import TopologyDoubt
from distprof.merge.topology.evidence import Evidence, Group


@dataclass(frozen=True, slots=True)
class Chains:
    """Graph of ranks that are linked."""

    neighbours: Mapping[int, frozenset[int]]

    def components(self) -> list[Group]:
        """Returns the connected components."""
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
        """Returns each component as a chain from its first rank on.

        Args:
            first: Ranks, one of which begins each component.

        Returns:
            None if a component is neither a chain nor a ring that exactly one of these ranks begins.
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
            # around a ring of stages, ranks ascend, unless both neighbours are lower
            chain.append(next((rank for rank in following if rank > chain[-1]), following[0]))
        return tuple(chain)


def chains_of(links: Iterable[Group]) -> Chains:
    """Builds the graph of these links."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for one, other in links:
        neighbours[one].add(other)
        neighbours[other].add(one)
    return Chains({rank: frozenset(others) for rank, others in neighbours.items()})


DIVIDING = ("pp", "tp", "ep")
"""Axes along which ranks hold different parameters."""
Partition = Sequence[Group]
"""Groups along an axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """A topology that explains everything that ranks hold and exchange."""

    sizes: Mapping[str, int]
    coordinates: Mapping[int, Mapping[str, int]]
    """Rank -> its place on each axis."""


class _DoubtError(Exception):
    """Carries a `TopologyDoubt` to the caller."""


def inferred(evidence: Evidence) -> Inferred | TopologyDoubt:
    """Returns the topology of a job, or why it is not certain."""
    try:
        partitions = _partitions(evidence)
    except _DoubtError as doubt:
        found: TopologyDoubt = doubt.args[0]
        return found
    topology = _placed(partitions, evidence.world_size)
    if topology is None:
        return "no_mesh"
    return topology if _explains_values(topology, evidence) else "parameters_differ"


def _partitions(evidence: Evidence) -> dict[str, Partition]:
    """Returns axis -> the groups along it, each in order of places."""
    if not evidence.saw_communication:
        raise _DoubtError("not_recorded")
    found: dict[str, Partition] = {}
    _add(found, "pp", _pipelines(evidence))
    _add(found, "cp", chains_of([link for link in evidence.links if evidence.alike(link)]).components())
    for group in sorted(evidence.exchanges):
        if evidence.alike(group):
            _add(found, "cp", [group])
        else:
            _add(found, "ep", [_parts(group, evidence)])
    for group in sorted(evidence.joins):
        if not evidence.alike(group):
            _add(found, "tp", [_parts(group, evidence)])
        elif group not in found.get("cp", ()):
            raise _DoubtError("replicas_join")
    return found


def _add(found: dict[str, Partition], axis: str, groups: Iterable[Group]) -> None:
    added = [*found.get(axis, ())]
    added += [group for group in groups if group not in added]
    if added:
        found[axis] = added


def _pipelines(evidence: Evidence) -> list[Group]:
    chains = chains_of([link for link in evidence.links if not evidence.alike(link)])
    ordered = chains.ordered(evidence.senders)
    if ordered is None or not all(map(evidence.all_differ, ordered)):
        raise _DoubtError("no_mesh")
    return ordered


def _parts(group: Group, evidence: Evidence) -> Group:
    """Returns the group in order of its values, so that replicas of a part have the same place."""
    if not (evidence.all_differ(group) and evidence.same_names(group)):
        raise _DoubtError("no_mesh")
    return tuple(sorted(group, key=evidence.values.__getitem__))


def _placed(partitions: Mapping[str, Partition], world_size: int) -> Inferred | None:
    """Derives coordinates from the groups; None if the groups do not form a mesh."""
    places: dict[int, dict[str, int]] = {rank: {} for rank in range(world_size)}
    sizes = {}
    for axis, groups in partitions.items():
        if sorted(rank for group in groups for rank in group) != [*range(world_size)] \
                or len({len(group) for group in groups}) > 1:
            return None
        sizes[axis] = len(groups[0])
        for group in groups:
            for place, rank in enumerate(group):
                places[rank][axis] = place
    if not all(_moves_along(axis, group, places) for axis, groups in partitions.items() for group in groups):
        return None
    replicas: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for rank, where in places.items():
        replicas[tuple(sorted(where.items()))].append(rank)
    dp_size = world_size // prod(sizes.values())
    if {len(ranks) for ranks in replicas.values()} != {dp_size} or len(replicas) != prod(sizes.values()):
        return None
    for ranks in replicas.values():
        for place, rank in enumerate(ranks):
            places[rank]["dp"] = place
    return Inferred(sizes=in_rank_order({"dp": dp_size, **sizes}),
                    coordinates={rank: in_rank_order(where) for rank, where in places.items()})


def _moves_along(axis: str, group: Group, places: Mapping[int, Mapping[str, int]]) -> bool:
    """Returns True if the ranks of a group differ only along this axis."""
    others = {tuple(place for other, place in sorted(places[rank].items()) if other != axis) for rank in group}
    return len(others) == 1


def _explains_values(topology: Inferred, evidence: Evidence) -> bool:
    """Returns whether ranks hold equal values if and only if they have the same place on the dividing axes."""
    parts = {rank: tuple(where.get(axis, 0) for axis in DIVIDING) for rank, where in topology.coordinates.items()}
    pairs = Counter((parts[rank], evidence.values[rank]) for rank in parts)
    return len(pairs) == len(set(parts.values())) == len(set(evidence.values.values()))
