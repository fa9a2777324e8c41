"""The topology as live objects of this process show it.

Frameworks that keep sizes of their own are asked first, then DeviceMesh objects and pipeline stages, then the wrappers
DDP and FSDP. Without any of them, all ranks are assumed to be data parallel, which merging checks against what they
communicated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod
from operator import attrgetter, methodcaller
from typing import Any

from distprof.contract.mesh import axes_of_dimensions, in_rank_order
from distprof.process.identity import in_process_group
from distprof.process.live_objects import live_objects
from distprof.process.topology import Topology, framework_sizes, from_sizes

STAGES = ("torch.distributed.pipelining.stage", "_PipelineStageBase")
DDP = ("torch.nn.parallel.distributed", "DistributedDataParallel")
FSDP1 = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")
FSDP2 = ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup")
MESH = ("torch.distributed.device_mesh", "DeviceMesh")
ASKED: dict[tuple[str, str], Callable[[Any], object]] = {
    STAGES: attrgetter("group_size", "group_rank"), DDP: attrgetter("process_group"),
    FSDP1: attrgetter("process_group"), FSDP2: attrgetter("mesh_info"), MESH: methodcaller("get_coordinate")}
"""What is read of each class to see whether an object's constructor has finished."""


def detect(*, rank: int, world_size: int) -> Topology:
    """Returns the topology according to live objects of frameworks and of torch."""
    live = _live_objects() if world_size > 1 or in_process_group() else ()
    unnamed = unnamed_axes(live)
    topology = _of_framework(rank=rank, world_size=world_size) or _of_meshes(live, unnamed, world_size=world_size)
    if topology is None or topology.mp_size * topology.dp_size < world_size:
        topology = _of_stages(topology, live, world_size=world_size) or _of_wrappers(
            topology, live, rank=rank, world_size=world_size)
    return replace(topology, unnamed_axes=unnamed)


def unnamed_axes(live: Sequence[Any] | None = None) -> tuple[str, ...]:
    """Returns the axes that dimensions of an unnamed mesh are assumed to be, in order.

    `dp` under FSDP2, or `dp_replicate` and `dp_shard` with hybrid sharding; else `tp` if parameters are sharded, and
    `dp` if not.
    """
    objects = _live_objects() if live is None else live
    groups = [thing for thing in objects if _is(thing, *FSDP2)]
    if groups:
        hybrid = any(type(group.mesh_info).__name__ == "HSDPMeshInfo" for group in groups)
        return ("dp_replicate", "dp_shard") if hybrid else ("dp",)
    return ("tp",) if any(_is_sharded_parameter(thing) for thing in objects) else ("dp",)


def axes_of_mesh(mesh: Any, unnamed: Sequence[str]) -> list[str | None]:
    """Returns the axis of each dimension of a DeviceMesh; None for a dimension whose name is not that of an axis."""
    if mesh.mesh_dim_names is not None:
        return axes_of_dimensions(mesh.mesh_dim_names)
    return [*unnamed[:mesh.ndim], *[unnamed[-1]] * (mesh.ndim - len(unnamed))]


def _is_sharded_parameter(thing: Any) -> bool:
    return (_is(thing, "torch.distributed.tensor", "DTensor") and getattr(thing, "_is_param", False)
            and thing.device_mesh.mesh_dim_names is None
            and any(placement.is_shard() for placement in thing.placements))


def _live_objects() -> list[Any]:
    """Returns objects of torch.distributed and torch.nn.parallel, unless a signal came while they are constructed."""
    found = live_objects(lambda kind: str(kind.__module__).startswith(("torch.distributed", "torch.nn.parallel")))
    return [thing for thing in found if _is_made(thing)]


def _is_made(thing: Any) -> bool:
    try:
        for kind, ask in ASKED.items():
            if _is(thing, *kind):
                ask(thing)
    except (AttributeError, RecursionError):  # FSDP without a module looks up all names in its module
        return False
    return True


def _is(thing: object, module: str, name: str) -> bool:
    home = sys.modules.get(module)
    # not isinstance(): some objects of torch run code and warn when asked
    return home is not None and getattr(home, name, None) in type(thing).__mro__  # None: it is just being imported


def _of_framework(*, rank: int, world_size: int) -> Topology | None:
    found = framework_sizes(rank=rank, world_size=world_size)
    if found is None:
        return None
    return Topology(sizes=in_rank_order(found.sizes), coordinates=in_rank_order(found.coordinates),
                    source=found.source, basis="framework")


# --- meshes and stages ---------------------------------------------------------------------------------------------


def _of_meshes(live: Sequence[Any], unnamed: Sequence[str], *, world_size: int) -> Topology | None:
    """Returns the topology of the most informative DeviceMesh: by ranks, names, model-parallel ranks and axes."""
    meshes = [thing for thing in live if _is(thing, *MESH)]
    found = [_from_mesh(mesh, unnamed) for mesh in meshes if mesh.get_coordinate() is not None]
    return max((one for one in found if world_size % prod(one.sizes.values()) == 0), default=None, key=_says)


def _says(topology: Topology) -> tuple[int, bool, int, int]:
    return (prod(topology.sizes.values()), "without names" not in topology.source, topology.mp_size,
            len(topology.sizes))


def _from_mesh(mesh: Any, unnamed: Sequence[str]) -> Topology:
    sizes: dict[str, int] = {}
    coordinates: dict[str, int] = {}
    axes = axes_of_mesh(mesh, unnamed)
    for index, axis in enumerate(name or "dp" for name in axes):
        coordinates[axis] = coordinates.get(axis, 0) * mesh.size(index) + mesh.get_coordinate()[index]
        sizes[axis] = sizes.get(axis, 1) * mesh.size(index)
    unknown = [name for name, axis in zip(mesh.mesh_dim_names or (), axes, strict=False) if axis is None]
    names = ", ".join(mesh.mesh_dim_names or [f"{mesh.ndim} unnamed, assumed to be {', '.join(unnamed)}"])
    guessed = f"; {', '.join(unknown)} assumed to be data parallel" if unknown else ""
    return Topology(sizes=in_rank_order(sizes), coordinates=in_rank_order(coordinates),
                    source=f"DeviceMesh ({names}){guessed}", basis="mesh")


def _of_stages(known: Topology | None, live: Iterable[Any], *, world_size: int) -> Topology | None:
    """Adds `pp` if the factor of the world size that no mesh covers is the number of pipeline stages."""
    known = known or from_sizes({}, rank=0, world_size=1)
    missing = world_size // prod(known.sizes.values())
    stage = next((thing for thing in live if _is(thing, *STAGES) and thing.group_size == missing), None)
    if stage is None:
        return None
    source = "no device mesh" if known.basis == "assumed" else known.source
    return Topology(sizes=in_rank_order({**known.sizes, "pp": missing}), source=f"{source}, pipeline stages",
                    coordinates=in_rank_order({**known.coordinates, "pp": stage.group_rank}), basis="mesh")


# --- wrappers ------------------------------------------------------------------------------------------------------


def _of_wrappers(known: Topology | None, live: Sequence[Any], *, rank: int, world_size: int) -> Topology:
    """Adds the factor of the world size that nothing else covers as data parallel."""
    hybrid = None if known else _hybrid_fsdp1(live, world_size=world_size)
    if hybrid is not None:
        return hybrid
    known = known or from_sizes({}, rank=rank, world_size=1)
    missing = world_size // prod(known.sizes.values())
    dp_size = known.sizes.get("dp", 1) * missing
    wrapper = next((type(thing).__name__ for thing in live
                    if (_is(thing, *DDP) or _is(thing, *FSDP1)) and _num_replicas(thing) == dp_size), None)
    others = "all" if known.basis == "assumed" else "the other"
    source = "no device mesh" if known.basis == "assumed" else known.source
    said = f"{others} ranks are data parallel by {wrapper}" if wrapper else \
        f"assuming {others} ranks are data parallel"
    return Topology(sizes=in_rank_order({**known.sizes, "dp": dp_size}), source=f"{source}: {said}",
                    coordinates=in_rank_order({**known.coordinates, "dp": rank // (world_size // dp_size)}),
                    basis="wrapper" if wrapper else "assumed")


def _num_replicas(wrapper: Any) -> int:
    inner, outer = wrapper.process_group, getattr(wrapper, "_inter_node_pg", None)
    return int(inner.size()) * (int(outer.size()) if outer is not None else 1)


def _hybrid_fsdp1(live: Iterable[Any], *, world_size: int) -> Topology | None:
    for thing in live:
        if _is(thing, *FSDP1) and getattr(thing, "_inter_node_pg", None) is not None \
                and _num_replicas(thing) == world_size:
            shards, replicas = thing.process_group, thing._inter_node_pg
            return Topology(
                sizes={"dp_replicate": int(replicas.size()), "dp_shard": int(shards.size())},
                coordinates={"dp_replicate": int(replicas.rank()), "dp_shard": int(shards.rank())},
                source="no device mesh: hybrid sharding by FullyShardedDataParallel", basis="wrapper")
    return None
