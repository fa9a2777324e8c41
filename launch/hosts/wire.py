"""What launchers of a job say to each other: messages over a connection on which both have proven to know a token.

The token travels through the store of torchrun's rendezvous, never over this connection: each side sends a random
number and the HMAC of both numbers (challenge and response, as of RFC 2195). Keys that are made of the same numbers
then seal each message with its place in the order (keyed BLAKE2, RFC 7693), so that nobody on the way changes, repeats
or drops one. Who must not read along either is kept out by TLS.
"""

from __future__ import annotations

import hmac
import ssl
import struct
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from distprof.errors import DataError, UsageError

PROTOCOL = 1
MAGIC = b"dphosts1"
NONCE_BYTES = PROOF_BYTES = 32
HEAD = struct.Struct("<I16s")
"""Length of a message and its seal."""
CHUNK_BYTES = 1 << 20
"""Of a file, in a message."""
MOST_SAID, MOST_ANSWERED = CHUNK_BYTES + (64 << 10), 256 << 20
"""Of a message to the first host, and of an answer, which may hold the state of a large job."""
MOST_NAME = 512
Name = Annotated[str, msgspec.Meta(max_length=MOST_NAME)]
Place = Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)]


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """What the first host tells the others through the store."""

    protocol: int
    addresses: list[str]
    """Where it may be reached, the likeliest first."""
    port: int
    token: str
    certificate: str
    """SHA-256 of the certificate that it shows; '' where the connection is not encrypted."""
    host: str


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message of a host."""

    host: Name
    stem: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}\Z")]
    """Host and boot id, as files are named."""
    node: Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
    """Its number in the rendezvous."""
    directory_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{1,32}\Z")]


class Put(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A part of a file."""

    path: Name
    """In the run directory."""
    offset: Place
    content: Annotated[bytes, msgspec.Meta(max_length=CHUNK_BYTES)]
    appends: bool
    """Behind what is there; else the parts make a file that takes the place of the one that is there."""
    is_last: bool


class Move(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A folder has another name."""

    path: Name
    to: Name


class Drop(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A file is no longer there."""

    path: Name


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to the ranks was made on that host: content of `watch/request.json`."""

    content: Annotated[bytes, msgspec.Meta(max_length=1 << 16)]


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The host is there, and hears what is new."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The job has ended on that host, and all was copied."""

    exit_code: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
    failed: dict[Name, int]
    """Fields of run.json on the rank that failed first there."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """To each message."""

    refused: str = ""
    """Why nothing was done."""
    size: int | None = None
    """Of the file as it is, where bytes to append did not fit behind it."""
    is_shared: bool = False
    """To `Hello`: both hosts record into one directory."""
    place: str = ""
    """To `Hello`: the run directory there."""
    files: dict[str, bytes] = {}
    """To `Beat`: files of `watch/` that changed."""


Kind = TypeVar("Kind")
Said = Hello | Put | Move | Drop | Ask | Beat | Done
_SAID: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)
_ANSWER = msgspec.msgpack.Decoder(Answer)


def proof(token: str, who: str, first: bytes, second: bytes) -> bytes:
    """What only somebody who knows the token can say of two random numbers."""
    return hmac.new(token.encode(), who.encode() + first + second, sha256).digest()


def is_proof(given: bytes, token: str, who: str, first: bytes, second: bytes) -> bool:
    """Whether it is that."""
    return hmac.compare_digest(given, proof(token, who, first, second))


class Seals:
    """One direction of a connection: seals messages, or opens them, in order."""

    def __init__(self, token: str, who: str, first: bytes, second: bytes) -> None:
        """Of the side that sends."""
        self._key, self._number = proof(token, f"{who} sends", first, second), 0

    def sealed(self, body: bytes) -> bytes:
        """A message as it is sent.

        Raises:
            DataError: It is larger than what is read at the other end.
        """
        if len(body) > MOST_ANSWERED:
            raise DataError(f"a message of {len(body)} bytes is too large to send")
        return HEAD.pack(len(body), self._seal(body)) + body

    def opened(self, head: bytes, body: bytes) -> bytes:
        """The body, if nobody changed it.

        Raises:
            DataError: Somebody did.
        """
        if not hmac.compare_digest(HEAD.unpack(head)[1], self._seal(body)):
            raise DataError("a message was changed in transit")
        return body

    def _seal(self, body: bytes) -> bytes:
        number, self._number = self._number, self._number + 1
        return blake2b(number.to_bytes(8, "little") + body, digest_size=16, key=self._key).digest()


def length_in(head: bytes, most: int) -> int:
    """Bytes of the message that follows.

    Raises:
        DataError: More than such a message has.
    """
    length = int(HEAD.unpack(head)[0])
    if length > most:
        raise DataError(f"a message of {length} bytes is too large to read")
    return length


def encoded(message: Said | Answer) -> bytes:
    """A message as bytes."""
    return msgspec.msgpack.encode(message)


def said_in(body: bytes) -> Said:
    """What a host says.

    Raises:
        DataError: It is no message.
    """
    return _decoded(_SAID, body)


def answer_in(body: bytes) -> Answer:
    """What it is answered.

    Raises:
        DataError: It is no answer.
    """
    return _decoded(_ANSWER, body)


def _decoded(decoder: msgspec.msgpack.Decoder[Kind], body: bytes) -> Kind:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"not understood: {error}") from error


# --- TLS ---------------------------------------------------------------------------------------------------------


def server_context(certificate: Path, key: Path | None) -> tuple[ssl.SSLContext, str]:
    """For the host that is connected to, and what the others know its certificate by.

    Raises:
        UsageError: The files are no certificate with its key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password="")  # else it asks in the terminal
        text = certificate.read_text(encoding="ascii", errors="replace")
        first = text[text.index(ssl.PEM_HEADER):text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)]
        shown = sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
    except (OSError, ValueError) as error:
        raise UsageError(f"--hosts-cert {certificate}: {getattr(error, 'strerror', None) or error}",
                         hint="a PEM file with a certificate and its key without a password, or the key in "
                              "--hosts-key FILE") from error
    return context, shown


def client_context() -> ssl.SSLContext:
    """For the others. Who shows the certificate that was announced in the store is the first host: neither names nor
    dates in it tell more, and clocks of hosts may be wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def expect_certificate(connection: ssl.SSLSocket, shown: str) -> None:
    """Looks whether that is the certificate.

    Raises:
        DataError: It is another one.
    """
    if not hmac.compare_digest(sha256(connection.getpeercert(binary_form=True) or b"").hexdigest(), shown):
        raise DataError("its certificate is not the one that the first host announced")
