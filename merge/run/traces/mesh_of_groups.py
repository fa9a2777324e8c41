"""Finds the device mesh of a job by its process groups, where these leave no doubt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import prod

from distprof.contract.mesh import axes_of_groups, axis_of_group, in_rank_order
from distprof.merge.run.traces.trace_identity import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Sizes of the axes, where one rank stands, and the groups they were found by."""

    sizes: dict[str, int]
    coordinates: dict[str, int]
    source: str
    """What says so."""


def mesh_of(groups: Iterable[Group], *, rank: int, world_size: int) -> Mesh | None:
    """The one mesh that the groups of a rank can mean; None where they leave a doubt.

    Groups make a mesh where they share nothing but the rank and the product of their sizes is the world size. Of
    several such choices the finest counts. Groups of experts cut across the others: with them nothing is certain.
    """
    named = {(axis, group.ranks): group for group in groups if len(group.ranks) > 1 and rank in group.ranks
             and (axis := axis_of_group(group.description)) is not None}
    if any(axis == "ep" for axis, _ in named) or world_size == 1:
        return None
    known = list(named)
    for count in range(len(known), 0, -1):
        found = [chosen for chosen in combinations(known, count) if _is_mesh(chosen, world_size)]
        if found:
            meshes = [_mesh(chosen, rank, [named[one].description for one in chosen]) for chosen in found]
            return meshes[0] if all(one.sizes == other.sizes and one.coordinates == other.coordinates
                                    for one, other in pairwise(meshes)) else None
    return None


def _is_mesh(chosen: Sequence[tuple[str, tuple[int, ...]]], world_size: int) -> bool:
    return (prod(len(ranks) for _, ranks in chosen) == world_size
            and all(len({*one} & {*other}) == 1 for (_, one), (_, other) in combinations(chosen, 2)))


def _mesh(chosen: Sequence[tuple[str, tuple[int, ...]]], rank: int, names: Sequence[str]) -> Mesh:
    sizes, coordinates = dict[str, int](), dict[str, int]()
    parts = [(part or axis, ranks) for part, (axis, ranks) in zip(axes_of_groups(names), chosen, strict=True)]
    # of two groups of an axis the one with neighbouring ranks varies faster
    for axis, ranks in sorted(parts, key=lambda one: -_stride(one[1])):
        coordinates[axis] = coordinates.get(axis, 0) * len(ranks) + ranks.index(rank)
        sizes[axis] = sizes.get(axis, 1) * len(ranks)
    return Mesh(sizes=in_rank_order(sizes), coordinates=in_rank_order(coordinates),
                source=f"process groups of the traces: {', '.join(names)}")


def _stride(ranks: Sequence[int]) -> int:
    return abs(ranks[1] - ranks[0])
