"""The tree in which ranks compare their clocks: which rank asks which."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from distprof.process.identity import Identity

FAN_OUT = 32
"""Hosts that ask the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Position of a rank in the tree."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @classmethod
    def of(cls, identity: Identity, environ: Mapping[str, str] = os.environ) -> Place:
        """As torchrun numbers ranks, host by host; where that does not fit each rank counts as a host."""
        size = int(environ.get("LOCAL_WORLD_SIZE", "1"))
        fits = identity.local_rank < size <= identity.world_size and identity.rank % size == identity.local_rank
        return cls(rank=identity.rank, world_size=identity.world_size,
                   local_rank=identity.local_rank if fits else 0, local_world_size=size if fits else 1)

    @property
    def peers(self) -> list[int]:
        """The rank to ask, and the one to ask if that does not record; none on rank 0."""
        if not self.rank:
            return []
        host = self.rank // self.local_world_size
        first = self.rank - self.local_rank if self.local_rank else (host - 1) // FAN_OUT * self.local_world_size
        return list(dict.fromkeys((first, 0)))

    @property
    def num_clients(self) -> int:
        """How many ranks ask this one."""
        if self.local_rank:
            return 0
        host, num_hosts = self.rank // self.local_world_size, -(-self.world_size // self.local_world_size)
        children = range(host * FAN_OUT + 1, min((host + 1) * FAN_OUT + 1, num_hosts))
        return self.local_world_size - 1 + len(children)

    @property
    def remote(self) -> bool:
        """True where ranks of other hosts may ask this one."""
        return self.world_size > self.local_world_size
