"""Reads from a trace which rank wrote it: world size, host, device, process groups, and the mesh of these groups."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, pairwise
from math import prod
from typing import Any

from distprof.contract.mesh import axes_of_groups, axis_of_group, in_rank_order
from distprof.contract.run_json import MOST_RANKS

MOST_DIGITS = 20
"""Limit on the digits of a number: Python refuses to read thousands of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group that contains the rank."""

    description: str
    """Like `mesh_tp`, `default_pg`, `TENSOR_MODEL_PARALLEL_GROUP`."""
    ranks: tuple[int, ...]
    """Its global ranks, in the order of the group."""
    name: str = ""
    """Its name in events; unique in a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceIdentity:
    """What a trace says about its process; None, '' or empty if it does not say it."""

    rank: int | None = None
    world_size: int | None = None
    host: str = ""
    device_name: str | None = None
    """The name of all devices that the process saw, if they are of one kind."""
    groups: tuple[Group, ...] = field(default=())
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Axis of the device mesh -> size, if our post-processor or our recorder wrote them into the trace."""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    """Axis -> coordinate of the rank."""
    sizes_source: str = ""


def identity_of(values: Mapping[str, Any]) -> TraceIdentity:
    """Reads `distributedInfo`, `host_name` and `deviceProperties` as any version of Kineto has written them."""
    about, ours = _mapping(values.get("distributedInfo")), _mapping(values.get("distprof"))
    host, devices = values.get("host_name"), _list(values.get("deviceProperties"))
    names = {name for device in devices if isinstance(device, dict) and isinstance(name := device.get("name"), str)}
    return TraceIdentity(
        rank=_whole(about.get("rank")), world_size=_whole(about.get("world_size")) or None,
        host=host if isinstance(host, str) else "",
        device_name=names.pop() if len(names) == 1 else None,
        groups=tuple(group for one in _list(about.get("pg_config")) if (group := _group(one)) is not None),
        sizes=_by_axis(ours.get("topology")), coordinates=_by_axis(ours.get("coordinates")),
        sizes_source=str(ours.get("topology_source", "")))


def _by_axis(value: object) -> dict[str, int]:
    numbers = {axis: _whole(number) for axis, number in _mapping(value).items()}
    return in_rank_order({axis: number for axis, number in numbers.items() if number is not None})


def _group(config: object) -> Group | None:
    """Reads a group; None if not all of its ranks are listed."""
    known = _mapping(config)
    ranks = [_whole(rank) for rank in _list(known.get("ranks"))]
    known_ranks = [rank for rank in ranks if rank is not None]
    size = _whole(known.get("pg_size"))
    if not known_ranks or len(known_ranks) != len(ranks) or size not in (None, len(ranks)):
        return None
    return Group(description=str(known.get("pg_desc", "")), ranks=_shared(tuple(known_ranks)),
                 name=str(known.get("pg_name", "")))


@lru_cache(maxsize=1 << 12)
def _shared(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the same ranks as one shared object, since each rank of a group lists all of them."""
    return ranks


def _mapping(value: object) -> Mapping[str, Any]:
    """Returns an object, also from its text: early versions wrote `distributedInfo` as a string."""
    found = _parsed(value)
    return found if isinstance(found, dict) else {}


def _list(value: object) -> list[Any]:
    """Returns a list, also from its text: a daemon that requests a trace gets `ranks` as a string."""
    found = _parsed(value)
    return found if isinstance(found, list) else []


def _parsed(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:  # Python's notation
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _whole(value: object) -> int | None:
    if isinstance(value, str) and len(value) < MOST_DIGITS and value.strip().isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_RANKS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Sizes of the axes, the coordinates of one rank, and the groups they were derived from."""

    sizes: dict[str, int]
    coordinates: dict[str, int]
    source: str
    """What the mesh was derived from."""


def mesh_of(groups: Iterable[Group], *, rank: int, world_size: int) -> Mesh | None:
    """Returns the only mesh that the groups of a rank can mean; None if it is ambiguous.

    Groups form a mesh if they share nothing but the rank and the product of their sizes is the world size. Of several
    such choices, the one with the most groups counts. Groups of experts overlap the others: with them nothing is
    certain.
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
    # of two groups of an axis, the one with the smaller rank stride varies faster
    for axis, ranks in sorted(parts, key=lambda one: -_stride(one[1])):
        coordinates[axis] = coordinates.get(axis, 0) * len(ranks) + ranks.index(rank)
        sizes[axis] = sizes.get(axis, 1) * len(ranks)
    return Mesh(sizes=in_rank_order(sizes), coordinates=in_rank_order(coordinates),
                source=f"process groups of the traces: {', '.join(names)}")


def _stride(ranks: Sequence[int]) -> int:
    return abs(ranks[1] - ranks[0])
