"""The topology of a job: sizes of its device mesh and the coordinates of this rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from distprof.contract.mesh import AXES, GIVEN_AXES, SIZE_FLAGS, dp_size_of, in_rank_order, mp_size_of
from distprof.contract.rank_json import Basis
from distprof.errors import UsageError
from distprof.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Named sizes of the device mesh and where a rank stands in it."""

    sizes: Mapping[str, int]
    """Axis -> size, only those above 1 and those that were named."""
    coordinates: Mapping[str, int]
    source: str
    """How it was found, in words."""
    basis: Basis
    """What it rests on."""
    unnamed_axes: tuple[str, ...] = ("dp",)
    """Axes of the dimensions of a mesh without names; the last stands for all further ones."""

    @property
    def mp_size(self) -> int:
        """Product of the model-parallel sizes."""
        return mp_size_of(self.sizes)

    @property
    def dp_size(self) -> int:
        """Product of the data-parallel sizes."""
        return dp_size_of(self.sizes)


def requested(environ: Mapping[str, str]) -> dict[str, int]:
    """Sizes the user gave in DISTPROF_TP, DISTPROF_PP, DISTPROF_CP, DISTPROF_EP, DISTPROF_DP.

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
    """A topology from given sizes; without one for dp, the rest of the world is data parallel.

    Raises:
        UsageError: The sizes do not divide the world, or with dp do not make it up.
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
