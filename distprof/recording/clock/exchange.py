"""The exchange of times between ranks over TCP: the tree that says which rank asks which, and the resulting bounds.

Ranks find each other in the store of torch's process group.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from distprof.contract.rank_json import ClockSample
from distprof.own import time
from distprof.process.identity import Identity

FAN_OUT = 32
"""Number of hosts that ask the same host."""
PREFIX = "distprof/clock"
"""Prefix of our keys in the store."""
DISCARD = 9
"""A port number for a probing socket, to which nothing is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Position of a rank in the tree."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @classmethod
    def of(cls, identity: Identity, environ: Mapping[str, str] = os.environ) -> Place:
        """Assumes that ranks are numbered host by host, as by torchrun; if they are not, each rank counts as a host."""
        size = int(environ.get("LOCAL_WORLD_SIZE", "1"))
        fits = identity.local_rank < size <= identity.world_size and identity.rank % size == identity.local_rank
        return cls(rank=identity.rank, world_size=identity.world_size,
                   local_rank=identity.local_rank if fits else 0, local_world_size=size if fits else 1)

    @property
    def peers(self) -> list[int]:
        """The rank to ask, then rank 0, in case the former does not record; empty on rank 0."""
        if not self.rank:
            return []
        host = self.rank // self.local_world_size
        first = self.rank - self.local_rank if self.local_rank else (host - 1) // FAN_OUT * self.local_world_size
        return list(dict.fromkeys((first, 0)))

    @property
    def num_clients(self) -> int:
        """Number of ranks that ask this one."""
        if self.local_rank:
            return 0
        host, num_hosts = self.rank // self.local_world_size, -(-self.world_size // self.local_world_size)
        children = range(host * FAN_OUT + 1, min((host + 1) * FAN_OUT + 1, num_hosts))
        return self.local_world_size - 1 + len(children)

    @property
    def remote(self) -> bool:
        """True if ranks of other hosts may ask this one."""
        return self.world_size > self.local_world_size


def open_store(key: str = "") -> Any:
    """Returns the store of the default group with our prefix; `key` separates this recording from others."""
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    return PrefixStore(f"{PREFIX}/{key}" if key else PREFIX, _get_default_store())


def store_hosts(store: Any) -> list[str]:
    """Returns the host of the store, which every rank can reach; usually that of rank 0."""
    host = getattr(store._underlying_non_prefix_store, "host", None)
    return [host] if host else []


def own_addresses(store: object) -> list[str]:
    """Returns the address of the network interface that leads to the store."""
    found = []
    for host in store_hosts(store):
        with contextlib.suppress(OSError):
            family, _, _, _, where = socket.getaddrinfo(host, DISCARD, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)  # sends nothing
                found.append(str(probe.getsockname()[0]))
    return found


ASK = 0
"""Byte that asks for the time; any other byte is the number of a meeting for which the client is done."""
ANSWER = struct.Struct("<qq")
"""Arrival of the question and departure of the answer; ns since the epoch on the answering rank's clock."""
MEETING_S = 0.04
"""Time in seconds for questions between two steps; the last meeting gets what is left of `TOTAL_S`. An answer that is
under way may take the same time again."""
ENOUGH_ROUNDS = 32
GOOD_NS = 100_000
"""Error bound in ns; once it is reached, `ENOUGH_ROUNDS` questions are enough."""
DRIFT_RATIO = 1e-3
"""Upper bound of the drift between two clocks: quartz drifts by 1e-4, and adjtimex slews a clock by at most 5e-4."""


def best_of(connection: socket.socket, peer: int, until: float) -> tuple[ClockSample, OSError | None]:
    """Returns the sample with the lowest bound until a deadline of `time.monotonic`, and the error that ended it early.

    Raises:
        OSError: No usable answer was received.
    """
    best: ClockSample | None = None
    rounds = 0
    # at least once: on a busy machine the deadline may have passed before the first question
    while not rounds or (time.monotonic() < until and (
            rounds < ENOUGH_ROUNDS or best is None or (best.bound_ns or 0) > GOOD_NS)):
        connection.settimeout(max(until - time.monotonic(), MEETING_S))
        try:
            found = compared(peer, *_ask_once(connection))
        except OSError as error:
            if best is None:
                raise
            return replace(best, rounds=rounds), error
        rounds += 1
        if found is not None and (best is None or (found.bound_ns or 0) < (best.bound_ns or 0)):
            best = found
    if best is None:
        raise TimeoutError(f"none of {rounds} answers is usable")
    return replace(best, rounds=rounds), None


def compared(peer: int, asked_ns: int, there_ns: int, left_ns: int, back_ns: int) -> ClockSample | None:
    """Returns the sample that one question gives; None if a clock was set meanwhile.

    However the round trip splits into its two ways, the offset is at most `there - asked` and at least `left - back`.

    Args:
        peer: The rank that was asked.
        asked_ns: When the question was sent, on this rank's clock.
        there_ns: When it arrived, on the peer's clock.
        left_ns: When the answer was sent, on the peer's clock.
        back_ns: When it arrived, on this rank's clock.
    """
    away_ns, there_for_ns = back_ns - asked_ns, left_ns - there_ns
    if there_for_ns < 0 or away_ns < there_for_ns * (1 - DRIFT_RATIO):
        return None
    way_ns = max(away_ns - there_for_ns, 0)
    drifted_ns = int(away_ns * DRIFT_RATIO / 2) + 1  # during the round trip
    return ClockSample(peer=peer, at_ns=(asked_ns + back_ns) // 2,
                       offset_ns=(there_ns - asked_ns + left_ns - back_ns) // 2,
                       bound_ns=-(-way_ns // 2) + drifted_ns + 1, rounds=1)


def _ask_once(connection: socket.socket) -> tuple[int, int, int, int]:
    answer = b""
    asked_ns = time.time_ns()
    connection.sendall(bytes([ASK]))
    while len(answer) < ANSWER.size:
        part = connection.recv(ANSWER.size - len(answer))
        if not part:
            raise ConnectionResetError("it has stopped recording")
        answer += part
    back_ns = time.time_ns()
    return asked_ns, *ANSWER.unpack(answer), back_ns
