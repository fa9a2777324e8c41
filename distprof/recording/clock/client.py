"""The clock of this rank beside that of another: moments between two steps come in, what rank.json says goes out.

The rank asks a peer for its time over a connection of its own (Cristian, Distributed Computing 3, 1989): no collective
of the script's groups, nobody who has to come, an end to every wait. The peer is the first rank of the host; the first
ranks of hosts ask along a tree whose root is rank 0. Peers find each other through the store of the default group.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from msgspec.structs import replace

from distprof.contract.rank_json import ClockPair, ClockSample
from distprof.process.identity import Identity
from distprof.recording.clock.server import ANSWER, ASK, ClockResponder

PREFIX = "distprof/clock"
"""In front of our keys in the store."""
FAN_OUT = 32
"""Hosts that ask the same one."""
TOTAL_S = 0.25
"""How long a rank may take and wait in a recording."""
MEETING_S = 0.04
"""And between two steps, but for the last ones, which get what is left. An answer that is under way may take as much
again."""
SEARCH_S = 1.0
"""How long a thread looks for the peer beside the first steps, which nothing measures."""
LOOK_AGAIN_S = 0.003
ENOUGH_ROUNDS = 32
DISCARD = 9
"""A port to which nothing is sent."""
GOOD_NS = 100_000
"""A bound with which it is content after that many rounds."""
DRIFT_RATIO = 1e-3
"""Two clocks drift apart by no more: quartz by 1e-4, and what slews a clock (adjtimex) does it with 5e-4 at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank stands in the tree of those that ask each other."""

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
        """Whom to ask, and whom if that one does not record; nobody on rank 0."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a rank answers, as it stands in the store."""

    host: str
    boot_id: str
    names: list[str]
    port: int
    token: str


class ClockRecorder:
    """Compares clocks between steps; nothing it does can raise, hang or outlive `stop`."""

    def __init__(self) -> None:
        self.pairs = [_pair()]
        self.samples: list[ClockSample] = []
        self.note: str | None = None
        """Why samples are missing."""
        self._place: Place | None = None
        self._identity: Identity | None = None
        self._responder: ClockResponder | None = None
        self._connection: socket.socket | None = None
        self._peer = 0
        self._published = False
        self._stopped = False
        self._wake = threading.Event()
        self._searching: threading.Thread | None = None
        self._meetings = 0
        self._closed = False
        self._spent_s = 0.0

    def pair(self) -> None:
        """Reads the wall clock beside one that is never set: a step of the former shows."""
        self.pairs.append(_pair())

    def meet(self) -> None:
        """Lets itself be found and begins to look for the peer, as soon as there is a process group; waits for nothing.

        Called between steps that nothing measures.
        """
        self._within(SEARCH_S, self._search)

    def sample(self, *, last: bool = False) -> None:
        """Compares the clocks once; called between steps where a pass begins or ends."""
        self._meetings = min(self._meetings + 1, 255)
        left_s = TOTAL_S - self._spent_s
        allowed_s = left_s if last else min(MEETING_S, left_s)
        began, before = time.monotonic(), len(self.samples)
        self._within(allowed_s, self._sample)
        self._closed = last and len(self.samples) > before
        self._spent_s += min(time.monotonic() - began, allowed_s)  # what a busy machine adds is not what we waited for

    def stop(self) -> None:
        """Takes everything away."""
        self._stopped = True
        self._wake.set()
        if self._searching is not None:
            self._searching.join(MEETING_S)
        self._disconnect()
        if self._responder is not None:
            self._responder.close()
            self._responder = None

    def forget(self) -> None:
        """In a forked child: sockets are the parent's, and a lock may be held by a thread that is not there."""
        self._stopped = True
        self._disconnect()
        if self._responder is not None:
            self._responder.forget()

    def samples_until_now(self) -> list[ClockSample]:
        """The samples, closed by one without an answer where nobody was asked at the end."""
        if not self.samples or self._closed:
            return list(self.samples)
        # it stands for the end of the recording, until which the uncertainty has to hold
        return [*self.samples, ClockSample(peer=self._peer, at_ns=time.time_ns())]

    def _within(self, seconds: float, work: Callable[[float], None]) -> None:
        """Does work that has to end at a time of `time.monotonic`, if there is anybody to compare with."""
        if self._stopped or seconds <= 0 or not _in_process_group():
            return
        try:
            work(time.monotonic() + seconds)
        except Exception as error:  # noqa: BLE001 (clocks that were not compared are no reason to stop recording)
            self.note = f"{type(error).__name__}: {error}"
            self._disconnect()

    # --- finding the peer --------------------------------------------------------------------------------------

    def _search(self, until: float) -> None:
        """Has a thread look: what it calls may wait longer than we do (a store that died, names to resolve)."""
        if self._identity is None:
            self._identity = Identity.read()
            self._place = Place.of(self._identity)
        place, identity = self._place, self._identity
        if place is None or place.world_size < 2 or (self._searching is not None and self._searching.is_alive()):
            return
        answers = bool(place.num_clients) or not place.rank
        if (self._published or not answers) and (self._connection is not None or not place.peers):
            return
        if self._responder is None and answers:
            self._responder = ClockResponder(remote=place.remote)
        self._searching = threading.Thread(target=self._seek, args=(place, identity, until), daemon=True,
                                           name="distprof-clock-search")
        self._searching.start()

    def _seek(self, place: Place, identity: Identity, until: float) -> None:
        try:
            store = _store()
            if self._responder is not None and not self._published:
                address = Address(host=identity.host, boot_id=identity.boot_id, port=self._responder.port,
                                  token=self._responder.token, names=[*_own_address(store), identity.host])
                store.set(str(place.rank), json.dumps(asdict(address)))
                self._published = True
            again_s = LOOK_AGAIN_S
            while place.peers and not self._stopped and time.monotonic() < until:
                # the first peer may be late; the second is for when it did not come at all
                for peer in place.peers if self.samples else place.peers[:1]:
                    if self._connection is None and store.check([str(peer)]):
                        self._connect(peer, Address(**json.loads(store.get(str(peer)))), identity, store, until)
                if self._connection is not None:
                    return
                self._wake.wait(min(again_s, max(until - time.monotonic(), 0)))
                again_s *= 1.5  # thousands of ranks may be asking the store
        except Exception as error:  # noqa: BLE001 (a thread of ours has nobody to tell)
            self.note = f"{type(error).__name__}: {error}"

    def _connect(self, peer: int, address: Address, identity: Identity, store: Any, until: float) -> None:
        same = (address.host, address.boot_id) == (identity.host, identity.boot_id)
        names = ["127.0.0.1"] if same else [*(_store_host(store) if not peer else ()), *address.names]
        names = list(dict.fromkeys(names))
        for index, name in enumerate(names):
            left = (until - time.monotonic()) / (len(names) - index)
            try:
                found = socket.create_connection((name, address.port), timeout=max(left, 0.001))
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                found.sendall(address.token.encode())
            except OSError as error:
                self.note = f"rank {peer} at {name} port {address.port}: {error}"
                continue
            self._peer, self._connection = peer, found
            if self._stopped:  # the recording ended meanwhile
                self._disconnect()
            return

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    # --- asking ------------------------------------------------------------------------------------------------

    def _sample(self, until: float) -> None:
        for _ in range(2):  # what looks already may have been about to give up
            self._search(until)
            if self._searching is not None and self._connection is None:
                self._searching.join(max(until - time.monotonic(), 0))
        place = self._place
        if place is None:
            return
        if place.peers:
            self._ask(until)
        if self._responder is not None:
            self._responder.wait(self._meetings, num_clients=place.num_clients,
                                 seconds=max(until - time.monotonic(), 0))

    def _ask(self, until: float) -> None:
        connection = self._connection
        sample = ClockSample(peer=self._peer, at_ns=time.time_ns())
        if connection is not None:
            try:
                sample, late = _best_of(connection, self._peer, until)
                if late is not None:
                    raise late
                connection.sendall(bytes([self._meetings]))
                self.note = None
            except OSError as error:  # an answer that comes late would be taken for that of the next question
                self.note = f"rank {self._peer} did not answer: {error}" if sample.offset_ns is None else None
                self._disconnect()
        else:
            self.note = self.note or f"none of the ranks {self._place.peers if self._place else ()} records"
        self.samples.append(sample)


def _best_of(connection: socket.socket, peer: int, until: float) -> tuple[ClockSample, OSError | None]:
    """The best of some rounds, and what ended them early."""
    best: ClockSample | None = None
    rounds = 0
    # once in any case: on a busy machine the time may be over before the first question
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
        raise TimeoutError(f"no answer of {rounds} is of use")
    return replace(best, rounds=rounds), None


def compared(peer: int, asked_ns: int, there_ns: int, left_ns: int, back_ns: int) -> ClockSample | None:
    """What one question tells; None where a clock was set in between.

    Whatever the way there and the way back took, the offset is at most `there - asked` and at least `left - back`.

    Args:
        peer: Who was asked.
        asked_ns: When the question left, on this rank's clock.
        there_ns: When it was there, on the peer's clock.
        left_ns: When the answer left, on the peer's clock.
        back_ns: When it was here, on this rank's clock.
    """
    away_ns, there_for_ns = back_ns - asked_ns, left_ns - there_ns
    if there_for_ns < 0 or away_ns < there_for_ns * (1 - DRIFT_RATIO):
        return None
    way_ns = max(away_ns - there_for_ns, 0)
    drifted_ns = int(away_ns * DRIFT_RATIO / 2) + 1  # while the question was away
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
            raise ConnectionResetError("it has ended its recording")
        answer += part
    back_ns = time.time_ns()
    return asked_ns, *ANSWER.unpack(answer), back_ns


def _pair() -> ClockPair:
    """Both clocks at one time: the best of some readings, since anything may run between two of them."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    before, at, behind = min(readings, key=lambda one: one[2] - one[0])
    return ClockPair(realtime_ns=at, monotonic_ns=(before + behind) // 2)


def _in_process_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _store() -> Any:
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    return PrefixStore(PREFIX, _get_default_store())


def _store_host(store: Any) -> list[str]:
    """The host that every rank reaches already: as a rule that of rank 0."""
    host = getattr(store._underlying_non_prefix_store, "host", None)
    return [host] if host else []


def _own_address(store: Any) -> list[str]:
    """The address of the interface that leads to the store."""
    found = []
    for host in _store_host(store):
        with contextlib.suppress(OSError):
            family, _, _, _, where = socket.getaddrinfo(host, DISCARD, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)  # sends nothing
                found.append(str(probe.getsockname()[0]))
    return found
