"""The topology of a job, given by the user or by a framework: sizes of its device mesh and coordinates of this rank.

Megatron-core, DeepSpeed and torchtitan keep their own sizes, without DeviceMesh. Each is asked only if the script has
imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from distprof.contract.mesh import AXES, DATA_PARALLEL, GIVEN_AXES, SIZE_FLAGS, dp_size_of, in_rank_order, mp_size_of
from distprof.contract.rank_json import Basis
from distprof.errors import UsageError
from distprof.process.live_objects import live_objects
from distprof.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Named sizes of the device mesh and the position of a rank in it."""

    sizes: Mapping[str, int]
    """Axis -> size, only for sizes above 1 and axes that were given."""
    coordinates: Mapping[str, int]
    source: str
    """Where it was found, in words."""
    basis: Basis
    """Kind of evidence: given, mesh, framework, wrapper or assumed."""
    unnamed_axes: tuple[str, ...] = ("dp",)
    """Axes that the dimensions of an unnamed mesh are assumed to be; the last one stands for all further dimensions."""

    @property
    def mp_size(self) -> int:
        """The product of the model-parallel sizes."""
        return mp_size_of(self.sizes)

    @property
    def dp_size(self) -> int:
        """The product of the data-parallel sizes."""
        return dp_size_of(self.sizes)


def requested(environ: Mapping[str, str]) -> dict[str, int]:
    """Returns the sizes that the user gave in DISTPROF_TP, DISTPROF_PP, DISTPROF_CP, DISTPROF_EP, DISTPROF_DP.

    Raises:
        UsageError: A size is not a number above 0.
    """
    sizes = {}
    for axis in GIVEN_AXES:
        text = environ.get(f"DISTPROF_{axis.upper()}", "")
        if text and (not text.isdecimal() or int(text) < 1):
            raise UsageError(f"DISTPROF_{axis.upper()} must be a number above 0, not {text!r}")
        if text:
            sizes[axis] = int(text)
    return sizes


def from_sizes(sizes: Mapping[str, int], *, rank: int, world_size: int) -> Topology:
    """Returns the topology for given sizes; without a size for dp, the remaining factor of the world is data parallel.

    Raises:
        UsageError: The product of the sizes does not divide the world size, or with dp does not equal it.
    """
    product = prod(sizes.values())
    if world_size % product or ("dp" in sizes and product != world_size):
        given = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        wanted = "make up" if "dp" in sizes else "divide"
        raise UsageError(f"the sizes must {wanted} {counted(world_size, 'rank')}, but {given} = {product}",
                         hint=f"dp_size x mp_size is the number of ranks; mp_size is the product of {SIZE_FLAGS}")
    full = {"dp": world_size // product, **sizes}
    coordinates, rest = {}, rank
    for axis, size in reversed(in_rank_order(full).items()):
        coordinates[axis] = rest % size
        rest //= size
    order = f"given sizes, with ranks in the order {', '.join(GIVEN_AXES)} ({AXES[-1]} fastest)"
    return Topology(sizes=in_rank_order(full), coordinates=in_rank_order(coordinates),
                    source=order if sizes else "no device mesh: assuming all ranks are data parallel",
                    basis="given" if sizes else "assumed")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSizes:
    """What a framework reports about this rank."""

    sizes: Mapping[str, int]
    """Axis -> size; their product is the world size."""
    coordinates: Mapping[str, int]
    source: str


def framework_sizes(*, rank: int, world_size: int) -> FrameworkSizes | None:
    """Returns what the first framework reports whose sizes multiply to the world size; None if there is none."""
    for ask in (_megatron, _deepspeed_grid, _deepspeed_groups, _torchtitan):
        try:
            found = ask(rank)
        except Exception:  # noqa: BLE001 (internals of other packages, which differ between versions)
            continue
        if found is not None and prod(found.sizes.values()) == world_size:
            return found
    return None


# --- Megatron-core -------------------------------------------------------------------------------------------------

MEGATRON_AXES = {"pp": "pipeline_model_parallel", "dp": "data_parallel", "cp": "context_parallel",
                 "tp": "tensor_model_parallel"}


def _megatron(_rank: int) -> FrameworkSizes | None:
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None
    sizes = {axis: int(getattr(state, f"get_{name}_world_size")()) for axis, name in MEGATRON_AXES.items()}
    places = {axis: int(getattr(state, f"get_{name}_rank")()) for axis, name in MEGATRON_AXES.items()}
    return FrameworkSizes(
        **_with_experts(sizes, places, num_groups=_asked(state.get_expert_model_parallel_world_size),
                        place=_asked(state.get_expert_model_parallel_rank, otherwise=0)),
        source="Megatron parallel_state")


def _asked(question: Callable[[], Any], otherwise: int = 1) -> int:
    """Returns the framework's answer; `otherwise` if it refuses, as for groups that it did not create."""
    try:
        return int(question() or otherwise)
    except (AssertionError, RuntimeError, TypeError, KeyError):
        return otherwise


def _with_experts(sizes: dict[str, int], places: dict[str, int], *, num_groups: int,
                  place: int) -> dict[str, dict[str, int]]:
    """Returns sizes and coordinates with an expert axis, which frameworks split off the data-parallel ranks."""
    if num_groups > 1 and sizes["dp"] % num_groups == 0:
        sizes = {**sizes, "dp": sizes["dp"] // num_groups, "ep": num_groups}
        places = {**places, "dp": places["dp"] // num_groups, "ep": place}
    return {"sizes": sizes, "coordinates": places}


# --- DeepSpeed -----------------------------------------------------------------------------------------------------


def _deepspeed_grid(_rank: int) -> FrameworkSizes | None:
    """Reads the grid of a PipelineModule."""
    home = sys.modules.get("deepspeed.runtime.pipe.topology")
    grid = home and next(iter(live_objects(lambda kind: kind is home.PipelineParallelGrid)), None)
    if not grid:
        return None
    sizes = {"pp": grid.pipe_parallel_size, "dp": grid.data_parallel_size, "tp": grid.model_parallel_size}
    places = {"pp": grid.stage_id, "dp": grid.data_parallel_id, "tp": grid.get_slice_parallel_rank()}
    return FrameworkSizes(sizes=sizes, coordinates=places, source="DeepSpeed PipelineParallelGrid")


def _deepspeed_groups(rank: int) -> FrameworkSizes | None:
    """Reads the `mpu` that was passed to DeepSpeed, and the groups that it created for experts and sequences."""
    groups = sys.modules.get("deepspeed.utils.groups")
    distributed = sys.modules.get("torch.distributed")
    if groups is None or distributed is None:
        return None
    mpu, experts = groups.mpu, groups._EXPERT_PARALLEL_GROUP
    tp_size, tp_rank = (_asked(mpu.get_model_parallel_world_size), _asked(mpu.get_model_parallel_rank, 0)) \
        if hasattr(mpu, "get_model_parallel_world_size") else (1, 0)
    cp_size = _asked(groups._get_sequence_parallel_world_size)
    num_groups = max((group.size() for group in experts.values()), default=1)
    if tp_size * cp_size * num_groups == 1:
        return None
    dp_size = distributed.get_world_size() // (tp_size * cp_size)
    sizes = {"dp": dp_size, "cp": cp_size, "tp": tp_size}
    places = {"dp": rank // (tp_size * cp_size), "tp": tp_rank,
              "cp": _asked(groups._get_sequence_parallel_rank, 0) if cp_size > 1 else 0}
    place = next((group.rank() for group in experts.values() if group.size() == num_groups), 0)
    return FrameworkSizes(**_with_experts(sizes, places, num_groups=num_groups, place=place),
                          source="DeepSpeed process groups")


# --- torchtitan ----------------------------------------------------------------------------------------------------

TITAN_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


def _torchtitan(rank: int) -> FrameworkSizes | None:
    """Reads torchtitan's ParallelDims: none of its several meshes has all axes."""
    home = sys.modules.get("torchtitan.distributed.parallel_dims")
    dims = home and next(iter(live_objects(lambda kind: kind is home.ParallelDims)), None)
    if not dims:
        return None
    sizes = {axis: int(getattr(dims, axis)) for axis in TITAN_AXES}
    places, rest = {}, rank
    for axis in reversed(TITAN_AXES):
        places[axis] = rest % sizes[axis]
        rest //= sizes[axis]
    if 1 in (sizes["dp_replicate"], sizes["dp_shard"]):
        sizes = {"dp": sizes["dp_replicate"] * sizes["dp_shard"]} | {
            axis: size for axis, size in sizes.items() if axis not in DATA_PARALLEL}
        places = {"dp": places["dp_replicate"] + places["dp_shard"]} | {
            axis: place for axis, place in places.items() if axis not in DATA_PARALLEL}
    num_groups = int(getattr(dims, "ep", 1))
    if "dp" in sizes and sizes["cp"] * sizes["tp"] == 1:
        return FrameworkSizes(**_with_experts(sizes, places, num_groups=num_groups, place=places["dp"] % num_groups),
                              source="torchtitan ParallelDims")
    return None if num_groups > 1 else FrameworkSizes(sizes=sizes, coordinates=places,
                                                      source="torchtitan ParallelDims")
