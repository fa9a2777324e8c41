"""The connection of a host to the first host, with mutual authentication and a timeout for every wait."""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from distprof.errors import DataError
from distprof.launch.hosts.wire import (
    HEAD,
    MAGIC,
    MOST_ANSWERED,
    NONCE_BYTES,
    PROOF_BYTES,
    Announcement,
    Answer,
    Said,
    Seals,
    answer_in,
    client_context,
    encoded,
    expect_certificate,
    is_proof,
    length_in,
    proof,
)

REACHED_S, ANSWERED_S = 3.0, 20.0
"""Timeouts in seconds: for opening and authenticating a connection, after which the next address is tried; and for an
answer, after which the first host counts as gone."""


class Connection:
    """A connection on which both sides have proven that they belong to the job."""

    def __init__(self, wire: socket.socket, token: str) -> None:
        """Authenticates both sides.

        Args:
            wire: An open connection with a timeout.
            token: The token from the store of the rendezvous.

        Raises:
            DataError: The other side is another program, or does not know the token.
            OSError: The other side does not answer.
        """
        self._wire = wire
        greeting = self._read(len(MAGIC) + NONCE_BYTES)
        if not greeting.startswith(MAGIC):
            raise DataError("something else answers there")
        theirs, mine = greeting[len(MAGIC):], secrets.token_bytes(NONCE_BYTES)
        wire.sendall(mine + proof(token, "other host", theirs, mine))
        if not is_proof(self._read(PROOF_BYTES), token, "first host", theirs, mine):
            raise DataError("it does not know the token of this job")
        self._mine = Seals(token, "other host", theirs, mine)
        self._theirs = Seals(token, "first host", theirs, mine)
        wire.settimeout(ANSWERED_S)

    def ask(self, said: Said) -> Answer:
        """Sends a message and returns the answer.

        Raises:
            DataError: The answer is not valid.
            OSError: The other host does not answer.
        """
        self._wire.sendall(self._mine.sealed(encoded(said)))
        head = self._read(HEAD.size)
        return answer_in(self._theirs.opened(head, self._read(length_in(head, MOST_ANSWERED))))

    def _read(self, length: int) -> bytes:
        content = bytearray()
        while len(content) < length:
            piece = self._wire.recv(min(length - len(content), 1 << 20))
            if not piece:
                raise ConnectionError("the connection was closed")
            content += piece
        return bytes(content)


@contextmanager
def connected(to: Announcement) -> Iterator[Connection]:
    """Yields a connection to the first of the announced addresses at which the first host answers.

    Raises:
        OSError: It answers at none of them; the message has the reasons.
    """
    wire, connection = _opened(to)
    try:
        yield connection
    finally:
        with suppress(OSError):
            wire.close()


def _opened(to: Announcement) -> tuple[socket.socket, Connection]:
    why = dict[str, None]()
    for address in to.addresses:
        wire: socket.socket | None = None
        try:
            wire = socket.create_connection((address, to.port), REACHED_S)
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if to.certificate:
                wire = _encrypted(wire, to.certificate)
            return wire, Connection(wire, to.token)
        except (OSError, DataError) as error:
            why[str(getattr(error, "strerror", None) or error) or type(error).__name__] = None
            if wire is not None:
                wire.close()
    raise ConnectionError("; ".join(why) or "it announced no address")


def _encrypted(wire: socket.socket, certificate: str) -> ssl.SSLSocket:
    encrypted = client_context().wrap_socket(wire)
    try:
        expect_certificate(encrypted, certificate)
    except DataError:
        encrypted.close()
        raise
    return encrypted
