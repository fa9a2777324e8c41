"""The store of torch's default process group, in which ranks publish where they answer."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Any

PREFIX = "distprof/clock"
"""In front of our keys."""
DISCARD = 9
"""A port to which nothing is sent."""


def in_process_group() -> bool:
    """True where this process is in a process group."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def open_store() -> Any:
    """The store of the default group, under a prefix of our own."""
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    return PrefixStore(PREFIX, _get_default_store())


def store_hosts(store: Any) -> list[str]:
    """The host of the store, which every rank reaches already: as a rule that of rank 0."""
    host = getattr(store._underlying_non_prefix_store, "host", None)
    return [host] if host else []


def own_addresses(store: Any) -> list[str]:
    """The address of the network interface that leads to the store."""
    found = []
    for host in store_hosts(store):
        with contextlib.suppress(OSError):
            family, _, _, _, where = socket.getaddrinfo(host, DISCARD, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)  # sends nothing
                found.append(str(probe.getsockname()[0]))
    return found
