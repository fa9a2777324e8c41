"""Answers ranks that ask for the time over TCP, and nobody else.

A thread answers whenever a rank asks; otherwise it blocks in the kernel and costs nothing. A connection is a stranger
until it has sent the whole token: only a few strangers are kept, for a few seconds, and new ones displace the oldest.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import selectors
import socket
from collections import Counter
from dataclasses import dataclass, field

from distprof.own import Event, time
from distprof.recording.clock.exchange import ANSWER, ASK
from distprof.system import OwnSocket
from distprof.threads import UnseenThread

TOKEN_BYTES = 16
MAX_CLIENTS = 256
"""Maximum number of ranks that are answered; in a job, about forty ask the same one. It is limited because file
descriptors belong to the script."""
MAX_STRANGERS = 16
STRANGER_S = 5.0
"""Time in seconds within which a stranger must send the token; a rank sends it at once."""
PAUSE_S = 1.0
"""How long in seconds no connection is accepted after file descriptors ran out."""


@dataclass(slots=True)
class Stranger:
    """A connection that has not yet sent the whole token."""

    until: float = field(default_factory=lambda: time.monotonic() + STRANGER_S)
    said: bytes = b""


class ClockResponder:
    """Answers clients that have sent the token, from construction until `close`."""

    def __init__(self, *, remote: bool) -> None:
        """Begins to listen, on all interfaces if clients may be on another host (`remote`).

        Raises:
            OSError: No port is free.
        """
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        self._listener = OwnSocket(_listener(remote=remote))
        self.port = int(self._listener.getsockname()[1])
        self._wake, self._waker = map(OwnSocket, socket.socketpair())
        self._selector = selectors.PollSelector()  # has no descriptor itself
        self._strangers: dict[OwnSocket, Stranger] = {}
        """By connection, the oldest first."""
        self._num_clients = 0
        self._listens_at: float | None = None
        """When to listen again (`time.monotonic`); None while it listens."""
        self._finished: Counter[int] = Counter()
        self._more = Event()
        """Set when another client is done."""
        for ours in (self._listener, self._wake):
            ours.setblocking(False)
            self._selector.register(ours, selectors.EVENT_READ)
        self._thread = UnseenThread(self._serve)
        self._thread.start()

    def wait(self, meeting: int, *, num_clients: int, seconds: float) -> None:
        """Lets the thread run until the clients are done with a meeting, for at most `seconds`."""
        until = time.monotonic() + seconds
        while True:
            self._more = more = Event()
            if self._finished[meeting] >= num_clients or not more.wait(until - time.monotonic()):
                return

    def close(self) -> None:
        """Ends the thread and closes every connection."""
        if not (self._wake.is_there and self._waker.is_there):  # the script closed them, so the thread waits for ever
            self._release()
            return
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")  # closing alone does not wake the thread if a forked process holds the socket too
        self._waker.close()
        self._thread.join(1)

    def forget(self) -> None:
        """Closes the sockets in a forked child, where the thread does not exist."""
        self._waker.close()
        self._release()

    def _serve(self) -> None:
        try:
            while True:
                ready = self._selector.select(self._until_next())
                now_ns = time.time_ns()  # what is ready has arrived by now
                for key, _ in ready:
                    if key.fileobj is self._wake or not self._listener.is_there:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, OwnSocket) and key.fileobj.fileno() >= 0:  # a stranger may be gone
                        self._hear(key.fileobj, now_ns)
                self._look_at_the_time()
        finally:
            self._release()

    # --- who is let in ---------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            client = OwnSocket(self._listener.accept()[0])
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # such as no file descriptors left: select would return at once, again and again
            if not self._turn_away_the_oldest():
                self._listens_at = time.monotonic() + PAUSE_S
                self._selector.unregister(self._listener)
            return
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            client.close()
            return
        if len(self._strangers) >= MAX_STRANGERS:
            self._turn_away_the_oldest()
        self._strangers[client] = Stranger()
        self._selector.register(client, selectors.EVENT_READ)

    def _turn_away_the_oldest(self) -> bool:
        """Returns False if there is no stranger."""
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        self._close(oldest)
        return True

    def _close(self, client: OwnSocket) -> None:
        self._num_clients -= self._strangers.pop(client, None) is None
        self._selector.unregister(client)
        client.close()

    def _until_next(self) -> float | None:
        """Returns the seconds until a deadline has to be handled; None if there is none."""
        until = next((stranger.until for stranger in self._strangers.values()), self._listens_at)
        until = until if until is None or self._listens_at is None else min(until, self._listens_at)
        return None if until is None else max(until - time.monotonic(), 0)

    def _look_at_the_time(self) -> None:
        now = time.monotonic()
        for client in [client for client, stranger in self._strangers.items() if stranger.until <= now]:
            self._close(client)
        if self._listens_at is not None and self._listens_at <= now:
            self._listens_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    # --- what is said ----------------------------------------------------------------------------------------------

    def _hear(self, client: OwnSocket, now_ns: int) -> None:
        stranger = self._strangers.get(client)
        try:
            stays = client.is_there and (
                self._answer(client, now_ns) if stranger is None else self._introduced(client, stranger))
        except BlockingIOError:
            return
        except OSError:
            stays = False
        if not stays:
            self._close(client)

    def _answer(self, client: OwnSocket, now_ns: int) -> bool:
        """Answers what was received; False if the connection has ended."""
        received = client.recv(64)
        if len(received) > 1:  # some bytes may have arrived later
            now_ns = time.time_ns()
        for byte in received:
            if byte == ASK:
                client.send(ANSWER.pack(now_ns, time.time_ns()))
            else:
                self._count(byte)
        return bool(received)

    def _introduced(self, client: OwnSocket, stranger: Stranger) -> bool:
        """Reads the token, possibly in pieces; only the whole is checked, or a stranger would learn how much is right.

        Returns False if the connection is to be closed.
        """
        received = client.recv(TOKEN_BYTES - len(stranger.said))
        stranger.said += received
        if len(stranger.said) < TOKEN_BYTES:
            return bool(received)
        if not hmac.compare_digest(stranger.said, self.token.encode()) or self._num_clients >= MAX_CLIENTS:
            return False
        del self._strangers[client]
        self._num_clients += 1
        return True

    def _count(self, meeting: int) -> None:
        self._finished[meeting] += 1
        self._more.set()

    def _release(self) -> None:
        for key in list((self._selector.get_map() or {}).values()):
            if isinstance(key.fileobj, OwnSocket):
                key.fileobj.close()
        for ours in (self._listener, self._wake, self._waker):
            ours.close()
        self._selector.close()


def _listener(*, remote: bool) -> socket.socket:
    if remote and socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=MAX_CLIENTS)
    return socket.create_server(("" if remote else "127.0.0.1", 0), backlog=MAX_CLIENTS)
