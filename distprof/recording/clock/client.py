"""Compares the clock of this rank with that of another rank, between two steps.

The rank asks a peer for its time over a separate TCP connection (Cristian, Distributed Computing 3, 1989). This uses no
collective of the script's groups and needs no rank to take part, and every wait is limited. The peer is the first rank
of the host; the first ranks of hosts form a tree whose root is rank 0. Peers find each other through the store of the
default group.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass

from distprof.contract.rank_json import ClockPair, ClockSample
from distprof.own import Event, time
from distprof.process.identity import Identity, in_process_group
from distprof.recording.clock.exchange import MEETING_S, Place, best_of, open_store, own_addresses, store_hosts
from distprof.recording.clock.responder import ClockResponder
from distprof.system import OwnSocket
from distprof.threads import UnseenThread

TOTAL_S = 0.25
"""Maximum time in seconds that a rank spends on comparing clocks in a recording."""
SEARCH_S = 1.0
"""Maximum time in seconds that a thread looks for the peer during the first steps, which are not measured."""
LOOK_AGAIN_S = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a rank answers; published in the store."""

    host: str
    boot_id: str
    names: list[str]
    port: int
    token: str


class ClockRecorder:
    """Compares clocks between steps; it never raises or hangs, and nothing of it outlives `stop`."""

    def __init__(self, key: str = "") -> None:
        """Creates a recorder without a peer; `key` is passed to `open_store`."""
        self._key = key
        self.pairs = [_pair()]
        self.samples: list[ClockSample] = []
        self.note: str | None = None
        """Why samples are missing; None if they are not."""
        self._place: Place | None = None
        self._identity: Identity | None = None
        self._responder: ClockResponder | None = None
        self._connection: OwnSocket | None = None
        self._peer = 0
        self._published = False
        self._stopped = False
        self._wake = Event()
        self._searching: UnseenThread | None = None
        self._meetings = 0
        self._closed = False
        self._spent_s = 0.0

    def pair(self) -> None:
        """Reads the wall clock together with the monotonic clock, so that setting the former is detected."""
        self.pairs.append(_pair())

    def meet(self) -> None:
        """Publishes this rank's address and begins to look for the peer, once there is a process group; does not wait.

        Called between steps that are not measured.
        """
        self._within(SEARCH_S, self._search)

    def sample(self, *, last: bool = False) -> None:
        """Compares the clocks once; called between steps when a pass begins or ends."""
        self._meetings = min(self._meetings + 1, 255)
        left_s = TOTAL_S - self._spent_s
        allowed_s = left_s if last else min(MEETING_S, left_s)
        began, before = time.monotonic(), len(self.samples)
        self._within(allowed_s, self._sample)
        self._closed = last and len(self.samples) > before
        self._spent_s += min(time.monotonic() - began, allowed_s)  # not counting delays by a busy machine

    def stop(self) -> None:
        """Closes the connections and ends the threads."""
        self._stopped = True
        self._wake.set()
        if self._searching is not None:
            self._searching.join(MEETING_S)
        self._disconnect()
        if self._responder is not None:
            self._responder.close()
            self._responder = None

    def forget(self) -> None:
        """Closes the parent's connection in a forked child; locks are not used: a thread that is gone may hold them."""
        self._stopped = True
        self._disconnect()
        if self._responder is not None:
            self._responder.forget()

    def samples_until_now(self) -> list[ClockSample]:
        """Returns the samples, with a final one without an answer if no peer was asked at the end."""
        if not self.samples or self._closed:
            return list(self.samples)
        # it marks the end of the recording, until which the uncertainty has to hold
        return [*self.samples, ClockSample(peer=self._peer, at_ns=time.time_ns())]

    def _within(self, seconds: float, work: Callable[[float], None]) -> None:
        """Calls `work` with its deadline (of `time.monotonic`), if there are other ranks to compare with."""
        if self._stopped or seconds <= 0 or not in_process_group():
            return
        try:
            work(time.monotonic() + seconds)
        except Exception as error:  # noqa: BLE001 (failing to compare clocks is no reason to stop recording)
            self.note = f"{type(error).__name__}: {error}"
            self._disconnect()

    # --- finding the peer --------------------------------------------------------------------------------------

    def _search(self, until: float) -> None:
        """Starts a thread that looks for the peer: its calls may block for longer than we wait (a dead store, DNS)."""
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
        self._searching = UnseenThread(self._seek, place, identity, until)
        self._searching.start()

    def _seek(self, place: Place, identity: Identity, until: float) -> None:
        try:
            store = open_store(self._key)
            if self._responder is not None and not self._published:
                address = Address(host=identity.host, boot_id=identity.boot_id, port=self._responder.port,
                                  token=self._responder.token, names=[*own_addresses(store), identity.host])
                store.set(str(place.rank), json.dumps(asdict(address)))
                self._published = True
            again_s = LOOK_AGAIN_S
            while place.peers and not self._stopped and time.monotonic() < until:
                # the first peer may be late; the second is used if it never appeared
                for peer in place.peers if self.samples else place.peers[:1]:
                    if self._connection is None and store.check([str(peer)]):
                        self._connect(peer, Address(**json.loads(store.get(str(peer)))), identity, store, until)
                if self._connection is not None:
                    return
                self._wake.wait(min(again_s, max(until - time.monotonic(), 0)))
                again_s *= 1.5  # thousands of ranks may be polling the store
        except Exception as error:  # noqa: BLE001 (nobody waits for this thread)
            self.note = f"{type(error).__name__}: {error}"

    def _connect(self, peer: int, address: Address, identity: Identity, store: object, until: float) -> None:
        same = (address.host, address.boot_id) == (identity.host, identity.boot_id)
        names = ["127.0.0.1"] if same else [*(store_hosts(store) if not peer else ()), *address.names]
        names = list(dict.fromkeys(names))
        for index, name in enumerate(names):
            left = (until - time.monotonic()) / (len(names) - index)
            try:
                found = OwnSocket(socket.create_connection((name, address.port), timeout=max(left, 0.001)))
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
        for _ in range(2):  # a search that is already running may be about to give up
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
                if not connection.is_there:
                    raise OSError("the script closed the connection")
                sample, late = best_of(connection, self._peer, until)
                if late is not None:
                    raise late
                connection.sendall(bytes([self._meetings]))
                self.note = None
            except OSError as error:  # a late answer would be mistaken for the answer to the next question
                self.note = f"rank {self._peer} did not answer: {error}" if sample.offset_ns is None else None
                self._disconnect()
        else:
            self.note = self.note or f"none of ranks {self._place.peers if self._place else ()} is recording"
        self.samples.append(sample)


def _pair() -> ClockPair:
    """Reads both clocks at the same time: the tightest of several readings, as the thread may be preempted."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    before, at, behind = min(readings, key=lambda one: one[2] - one[0])
    return ClockPair(realtime_ns=at, monotonic_ns=(before + behind) // 2)
