"""Time asked and answered over TCP, and the bounds of a clock's offset that follow from an answer.

A thread answers whenever a rank asks; in between it waits in the kernel and costs nothing.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import struct
import threading
import time
from collections import Counter

from msgspec.structs import replace

from distprof.contract.rank_json import ClockSample
from distprof.threads import UnseenThread

TOKEN_BYTES = 16
MAX_CLIENTS = 256
"""Connections that are kept; a rank of a job has some forty. File descriptors are the script's."""
ASK = 0
"""The question; any other byte is the number of a meeting at which the client has asked enough."""
ANSWER = struct.Struct("<qq")
"""When the question was there, and when the answer left; ns since the epoch, this rank's clock."""
MEETING_S = 0.04
"""Time for questions between two steps, but for the last ones, which get what is left; an answer that is under way may
take as much again."""
ENOUGH_ROUNDS = 32
GOOD_NS = 100_000
"""A bound with which that many rounds are enough."""
DRIFT_RATIO = 1e-3
"""Two clocks drift apart by no more: quartz by 1e-4, and adjtimex slews a clock by 5e-4 at most."""


class ClockResponder:
    """Answers clients that send the token, from construction until `close`."""

    def __init__(self, *, remote: bool) -> None:
        """Begins to listen, on all interfaces if clients may be on another host.

        Raises:
            OSError: No port is free.
        """
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        self._listener = _listener(remote=remote)
        self.port = int(self._listener.getsockname()[1])
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[socket.socket, str] = {}
        self._finished: Counter[int] = Counter()
        self._changed = threading.Condition()
        for ours in (self._listener, self._wake):
            ours.setblocking(False)
            self._selector.register(ours, selectors.EVENT_READ)
        self._thread = UnseenThread(self._serve)
        self._thread.start()

    def wait(self, meeting: int, *, num_clients: int, seconds: float) -> None:
        """Lets the thread run until the clients have asked enough, or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished[meeting] >= num_clients, timeout=seconds)

    def close(self) -> None:
        """Ends the thread and closes every connection."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")  # closing does not wake the thread where a fork holds the socket too
        self._waker.close()
        self._thread.join(1)

    def forget(self) -> None:
        """Closes the sockets in a forked child, where the thread does not exist."""
        self._waker.close()
        self._release()

    def _serve(self) -> None:
        try:
            while True:
                ready = self._selector.select()
                now_ns = time.time_ns()  # what is ready has arrived by now
                for key, _ in ready:
                    if key.fileobj is self._wake:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket) and not self._answer(key.fileobj, now_ns):
                        self._strangers.pop(key.fileobj, None)
                        self._selector.unregister(key.fileobj)
                        key.fileobj.close()
        finally:
            self._release()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # like no file descriptors left: select would return at once, again and again
            self._selector.unregister(self._listener)
            self._listener.close()
            return
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            client.close()
            return
        if len(self._selector.get_map()) > MAX_CLIENTS:
            client.close()
            return
        self._strangers[client] = ""
        self._selector.register(client, selectors.EVENT_READ)

    def _answer(self, client: socket.socket, now_ns: int) -> bool:
        """False where the connection is to be closed."""
        try:
            if client in self._strangers:
                return self._introduced(client)
            received = client.recv(64)
            if len(received) > 1:  # some of it may have come later
                now_ns = time.time_ns()
            for byte in received:
                if byte == ASK:
                    client.send(ANSWER.pack(now_ns, time.time_ns()))
                else:
                    self._count(byte)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return bool(received)

    def _introduced(self, client: socket.socket) -> bool:
        """Reads the token, which may come in pieces."""
        known = self._strangers[client]
        received = known + client.recv(TOKEN_BYTES - len(known)).decode("latin-1")
        self._strangers[client] = received
        if received == self.token:
            del self._strangers[client]
        return received != known and self.token.startswith(received)

    def _count(self, meeting: int) -> None:
        with self._changed:
            self._finished[meeting] += 1
            self._changed.notify_all()

    def _release(self) -> None:
        for key in list((self._selector.get_map() or {}).values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()


def _listener(*, remote: bool) -> socket.socket:
    if remote and socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=MAX_CLIENTS)
    return socket.create_server(("" if remote else "127.0.0.1", 0), backlog=MAX_CLIENTS)


def best_of(connection: socket.socket, peer: int, until: float) -> tuple[ClockSample, OSError | None]:
    """The sample with the least bound until a time of `time.monotonic`, and the error that ended it early.

    Raises:
        OSError: There was no answer at all.
    """
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
    """The sample that one question gives; None where a clock was set in between.

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
