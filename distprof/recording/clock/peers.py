"""Which rank asks which for its clock, a tree, and the store of torch's process group in which they find each other."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distprof.process.identity import Identity

FAN_OUT = 32
"""Hosts that ask the same one."""
PREFIX = "distprof/clock"
"""In front of our keys."""
DISCARD = 9
"""A port to which nothing is sent."""


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


def open_store(key: str = "") -> Any:
    """The store of the default group, under a prefix of our own; `key` keeps a recording apart from others."""
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    return PrefixStore(f"{PREFIX}/{key}" if key else PREFIX, _get_default_store())


def store_hosts(store: Any) -> list[str]:
    """The host of the store, which every rank reaches already: as a rule that of rank 0."""
    host = getattr(store._underlying_non_prefix_store, "host", None)
    return [host] if host else []


def own_addresses(store: object) -> list[str]:
    """The address of the network interface that leads to the store."""
    found = []
    for host in store_hosts(store):
        with contextlib.suppress(OSError):
            family, _, _, _, where = socket.getaddrinfo(host, DISCARD, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)  # sends nothing
                found.append(str(probe.getsockname()[0]))
    return found
