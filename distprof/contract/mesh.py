"""The axes of a device mesh, one row each, and how meshes and process groups name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """One kind of parallelism: an axis of the device mesh."""

    name: str
    """Name in tables, in `summary.json` and, if it is model parallel, of a flag of `distprof run`."""
    title: str
    words: tuple[str, ...] = ()
    """First words of the names of mesh dimensions of this axis: that of `dp_shard` is `dp`."""
    megatron_group: str | None = None
    """Description of the process group in Megatron; None if it has none."""
    is_part: bool = False
    """True for the two axes into which hybrid sharding divides `dp`; a mesh has either both or `dp`."""
    model_parallel: bool = True
    """True if the size is a factor of mp_size: ranks along the axis hold different parts of the model or input."""


MESH_AXES = (
    MeshAxis(name="pp", title="pipeline parallel", words=("pp", "pipe", "pipeline", "stage"),
             megatron_group="PIPELINE_MODEL_PARALLEL_GROUP"),
    MeshAxis(name="dp", title="data parallel", model_parallel=False, megatron_group="DATA_PARALLEL_GROUP",
             words=("dp", "ddp", "fsdp", "hsdp", "data", "replicate", "shard", "batch")),
    MeshAxis(name="dp_replicate", title="replicas of hybrid sharding", model_parallel=False, is_part=True),
    MeshAxis(name="dp_shard", title="shards of hybrid sharding", model_parallel=False, is_part=True),
    MeshAxis(name="cp", title="context parallel", words=("cp", "sp", "context", "seq", "sequence"),
             megatron_group="CONTEXT_PARALLEL_GROUP"),
    MeshAxis(name="ep", title="expert parallel", words=("ep", "expert"),
             megatron_group="EXPERT_MODEL_PARALLEL_GROUP"),
    MeshAxis(name="tp", title="tensor parallel", words=("tp", "mp", "tensor", "model"),
             megatron_group="TENSOR_MODEL_PARALLEL_GROUP"),
)
"""From slowest to fastest axis: neighbouring ranks differ in the last one."""

AXES = tuple(axis.name for axis in MESH_AXES)
MODEL_PARALLEL = tuple(axis.name for axis in MESH_AXES if axis.model_parallel)
DATA_PARALLEL = tuple(axis.name for axis in MESH_AXES if not axis.model_parallel)
GIVEN_AXES = tuple(axis.name for axis in MESH_AXES if not axis.is_part)
"""Axes whose size a user can give."""
SIZE_FLAGS = ", ".join(f"--{name}" for name in MODEL_PARALLEL)
"""Flags of `distprof run` that give the sizes, for hints."""

_AXIS_OF_WORD = {word: axis.name for axis in MESH_AXES for word in axis.words}
_AXIS_OF_MEGATRON_GROUP = {axis.megatron_group: axis.name for axis in MESH_AXES}
_SHARD_WORDS = {"shard", "fsdp"}


def axis_of_dimension(name: str) -> str | None:
    """Returns the axis of a mesh dimension by its first word: `dp` for `dp_shard`; None for an unknown word."""
    return _AXIS_OF_WORD.get(name.lower().split("_")[0])


def axes_of_dimensions(names: Sequence[str]) -> list[str | None]:
    """Returns the axis of each dimension of one mesh; None for an unknown word.

    If there are two data-parallel dimensions and only one has a name that means sharding, they are `dp_replicate` and
    `dp_shard`: hybrid sharding.
    """
    return _with_parts([axis_of_dimension(name) for name in names], names)


def axes_of_groups(descriptions: Sequence[str]) -> list[str | None]:
    """Like `axes_of_dimensions`, for the descriptions of the process groups of one mesh."""
    return _with_parts([axis_of_group(name) for name in descriptions], descriptions)


def _with_parts(axes: list[str | None], names: Sequence[str]) -> list[str | None]:
    shards = [bool(_SHARD_WORDS & {*name.lower().split("_")}) for name, axis in zip(names, axes, strict=True)
              if axis == "dp"]
    if len(shards) != 2 or shards[0] == shards[1]:
        return axes
    parts = iter("dp_shard" if is_shard else "dp_replicate" for is_shard in shards)
    return [next(parts) if axis == "dp" else axis for axis in axes]


def axis_of_group(description: str) -> str | None:
    """Returns the axis of a process group that DeviceMesh or Megatron created.

    None for other groups and for flattened dimensions of several axes, like `mesh_dp_shard_cp`.
    """
    if not description.startswith("mesh_"):
        return _AXIS_OF_MEGATRON_GROUP.get(description)
    axes = {_AXIS_OF_WORD.get(word) for word in description.lower().split("_")[1:]}
    return axes.pop() if len(axes) == 1 else None


def mp_size_of(sizes: Mapping[str, int]) -> int:
    """Returns the product of the model-parallel sizes; an axis without a size counts as 1."""
    return prod(sizes.get(axis, 1) for axis in MODEL_PARALLEL)


def dp_size_of(sizes: Mapping[str, int]) -> int:
    """Returns the product of the data-parallel sizes; an axis without a size counts as 1."""
    return prod(sizes.get(axis, 1) for axis in DATA_PARALLEL)


def in_rank_order(values: Mapping[str, int]) -> dict[str, int]:
    """Returns sizes or coordinates by axis, slowest axis first, without other keys."""
    return {axis: values[axis] for axis in AXES if axis in values}


def part_of(coordinates: Mapping[str, int] | None) -> tuple[tuple[str, int], ...]:
    """Returns which part of the model a rank works on: its coordinates on all axes except `dp`, along which ranks are
    replicas."""
    return tuple(sorted((axis, place) for axis, place in (coordinates or {}).items() if axis != "dp"))
