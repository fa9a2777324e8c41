"""The topology of a job: sizes of its device mesh and the coordinates of this rank.

Sizes that the user gave win; else DeviceMesh objects and pipeline stages of the process are looked at.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from distprof.contract.mesh import AXES, MODEL_PARALLEL, SIZE_FLAGS, axis_of_dimension, in_rank_order, mp_size_of
from distprof.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Named sizes of the device mesh and where a rank stands in it."""

    sizes: Mapping[str, int]
    """Axis -> size, only those above 1 and those that were named."""
    coordinates: Mapping[str, int]
    source: str
    """How it was found, in words."""
    unnamed_axis: str = "dp"
    """Axis of mesh dimensions that have no name."""

    @property
    def mp_size(self) -> int:
        """Product of the model-parallel sizes."""
        return mp_size_of(self.sizes)

    @property
    def dp_size(self) -> int:
        """Product of the data-parallel sizes."""
        return self.sizes.get("dp", 1)


def requested(environ: Mapping[str, str]) -> dict[str, int]:
    """Sizes the user gave in DISTPROF_TP, DISTPROF_PP, DISTPROF_CP, DISTPROF_EP.

    Raises:
        UsageError: A size is not a number above 0.
    """
    sizes = {}
    for axis in MODEL_PARALLEL:
        text = environ.get(f"DISTPROF_{axis.upper()}", "")
        if text and (not text.isdecimal() or int(text) < 1):
            raise UsageError(f"expected a number above 0 in DISTPROF_{axis.upper()}, found {text!r}")
        if text:
            sizes[axis] = int(text)
    return sizes


def from_sizes(sizes: Mapping[str, int], *, rank: int, world_size: int) -> Topology:
    """A topology from model-parallel sizes alone; the rest of the world is data parallel.

    Raises:
        UsageError: The sizes do not divide the world.
    """
    mp_size = prod(sizes.values())
    if world_size % mp_size:
        given = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        raise UsageError(f"expected model-parallel sizes that divide {world_size} ranks, found {given} = {mp_size}",
                         hint=f"mp_size is the product of {SIZE_FLAGS}")
    full = {"dp": world_size // mp_size, **sizes}
    coordinates, rest = {}, rank
    for axis, size in reversed(in_rank_order(full).items()):
        coordinates[axis] = rest % size
        rest //= size
    order = f"given sizes, ranks in the order {', '.join(AXES)} ({AXES[-1]} fastest)"
    return Topology(sizes=in_rank_order(full), coordinates=in_rank_order(coordinates),
                    source=order if sizes else "no device mesh: all ranks are data parallel")


def detect(*, rank: int, world_size: int) -> Topology:
    """The topology by live DeviceMesh objects and pipeline stages; without any, all ranks are data parallel."""
    live = _live_objects()
    unnamed = unnamed_axis(live)
    meshes = [mesh for mesh in live if _is(mesh, "torch.distributed.device_mesh", "DeviceMesh")]
    usable = [mesh for mesh in meshes if mesh.get_coordinate() is not None]
    stages = [stage for stage in live if _is(stage, "torch.distributed.pipelining.stage", "_PipelineStageBase")]
    topology = max((_from_mesh(mesh, unnamed) for mesh in usable), default=None, key=_rank_meshes)
    if topology is None or topology.mp_size * topology.dp_size < world_size:
        topology = _completed(topology, stages, rank=rank, world_size=world_size)
    return replace(topology, unnamed_axis=unnamed)


def unnamed_axis(live: Sequence[Any] | None = None) -> str:
    """Axis of mesh dimensions without a name: `tp` where parameters are sharded and not by FSDP, else `dp`."""
    objects = _live_objects() if live is None else live
    if any(_is(thing, "torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup") for thing in objects):
        return "dp"
    return "tp" if any(_is_sharded_parameter(thing) for thing in objects) else "dp"


def _is_sharded_parameter(thing: Any) -> bool:
    return (_is(thing, "torch.distributed.tensor", "DTensor") and getattr(thing, "_is_param", False)
            and thing.device_mesh.mesh_dim_names is None
            and any(placement.is_shard() for placement in thing.placements))


def _rank_meshes(topology: Topology) -> tuple[int, bool, int]:
    return prod(topology.sizes.values()), "without names" not in topology.source, len(topology.sizes)


def _live_objects() -> list[Any]:
    return [thing for thing in gc.get_objects() if str(type(thing).__module__).startswith("torch.distributed")]


def _is(thing: Any, module: str, name: str) -> bool:
    home = sys.modules.get(module)
    # not isinstance(): some objects of torch answer that by running code and warning
    return home is not None and getattr(home, name) in type(thing).__mro__


def _from_mesh(mesh: Any, unnamed: str) -> Topology:
    sizes: dict[str, int] = {}
    coordinates: dict[str, int] = {}
    unknown = []
    for index, name in enumerate(mesh.mesh_dim_names or [unnamed] * mesh.ndim):
        axis = axis_of_dimension(name) or "dp"
        unknown += [name] if axis_of_dimension(name) is None else []
        coordinates[axis] = coordinates.get(axis, 0) * mesh.size(index) + mesh.get_coordinate()[index]
        sizes[axis] = sizes.get(axis, 1) * mesh.size(index)
    names = ", ".join(mesh.mesh_dim_names or [f"{mesh.ndim} without names, taken for {unnamed}"])
    guessed = f"; {', '.join(unknown)} taken for data parallel" if unknown else ""
    return Topology(sizes=in_rank_order(sizes), coordinates=in_rank_order(coordinates),
                    source=f"DeviceMesh ({names}){guessed}")


def _completed(known: Topology | None, stages: Iterable[Any], *, rank: int, world_size: int) -> Topology:
    """Adds the factor of the world size that no mesh covers: pipeline stages of that number, else data parallel."""
    if known is None:
        known = from_sizes({}, rank=rank, world_size=1)
        source = "no device mesh"
    else:
        source = known.source
    missing = world_size // prod(known.sizes.values())
    stage = next((stage for stage in stages if stage.group_size == missing), None)
    if stage is not None:
        sizes = {**known.sizes, "pp": missing}
        return Topology(sizes=in_rank_order(sizes), source=f"{source}, pipeline stages",
                        coordinates=in_rank_order({**known.coordinates, "pp": stage.group_rank}))
    sizes = {**known.sizes, "dp": known.sizes.get("dp", 1) * missing}
    coordinates = {**known.coordinates, "dp": rank // (world_size // sizes["dp"])}
    return Topology(sizes=in_rank_order(sizes), coordinates=in_rank_order(coordinates),
                    source=f"{source}: {'the other' if source != 'no device mesh' else 'all'} ranks are data parallel")
