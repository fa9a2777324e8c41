"""Messages between launchers of a job, over a connection on which both sides have proven that they know a token.

The token is passed through the store of torchrun's rendezvous, never over this connection: each side sends a random
number and the HMAC of both numbers (challenge-response authentication, as in RFC 2195). Keys derived from the same
numbers then authenticate each message together with its sequence number (keyed BLAKE2, RFC 7693), so that an attacker
cannot change, repeat or drop one unnoticed. Against eavesdropping, the connection can use TLS.
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
"""Header of a message: its length in bytes and its seal, a message authentication code (MAC)."""
CHUNK_BYTES = 1 << 20
"""Maximum number of bytes of a file in one message."""
MOST_SAID, MOST_ANSWERED = CHUNK_BYTES + (64 << 10), 256 << 20
"""Maximum size in bytes of a message to the first host, and of an answer, which may hold the state of a large job."""
MOST_NAME = 512
Name = Annotated[str, msgspec.Meta(max_length=MOST_NAME)]
Place = Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)]


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """What the first host announces to the others through the store."""

    protocol: int
    addresses: list[str]
    """Its addresses, most likely to be reachable first."""
    port: int
    token: str
    certificate: str
    """SHA-256 of its TLS certificate; '' if connections are not encrypted."""
    host: str


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message of a host."""

    host: Name
    stem: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}\Z")]
    """Host name and boot id as used in file names."""
    node: Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
    """Node number in the rendezvous."""
    directory_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{1,32}\Z")]


class Put(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Part of a file."""

    path: Name
    """Relative to the run directory."""
    offset: Place
    content: Annotated[bytes, msgspec.Meta(max_length=CHUNK_BYTES)]
    appends: bool
    """Whether to append to the existing file; else the parts form a new file that replaces the existing one."""
    is_last: bool


class Move(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A folder was renamed."""

    path: Name
    to: Name


class Drop(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A file was removed."""

    path: Name


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A recording request was made on the sending host; has the content of its `watch/request.json`."""

    content: Annotated[bytes, msgspec.Meta(max_length=1 << 16)]


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Heartbeat; the answer has the watch files that changed."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The job ended on the sending host, and all its files were sent."""

    exit_code: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
    failed: dict[Name, int]
    """Fields of run.json about the rank that failed first on that host."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a message."""

    refused: str = ""
    """Why nothing was done; '' if it was."""
    size: int | None = None
    """To `Put`: size of the existing file if the offset is not its end; None if the part was written."""
    is_shared: bool = False
    """To `Hello`: whether both hosts record into one directory."""
    place: str = ""
    """To `Hello`: the run directory on the first host."""
    files: dict[str, bytes] = {}
    """To `Beat`: contents of the files of `watch/` that changed, by name."""


Kind = TypeVar("Kind")
Said = Hello | Put | Move | Drop | Ask | Beat | Done
_SAID: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)
_ANSWER = msgspec.msgpack.Decoder(Answer)


def proof(token: str, who: str, first: bytes, second: bytes) -> bytes:
    """Returns the HMAC of two random numbers, which only a side that knows the token can compute."""
    return hmac.new(token.encode(), who.encode() + first + second, sha256).digest()


def is_proof(given: bytes, token: str, who: str, first: bytes, second: bytes) -> bool:
    """Returns whether `given` is the right proof, in constant time."""
    return hmac.compare_digest(given, proof(token, who, first, second))


class Seals:
    """Seals the messages of one direction of a connection, or verifies them, in order."""

    def __init__(self, token: str, who: str, first: bytes, second: bytes) -> None:
        """Derives the key; `who` is the side that sends."""
        self._key, self._number = proof(token, f"{who} sends", first, second), 0

    def sealed(self, body: bytes) -> bytes:
        """Returns a message with its header.

        Raises:
            DataError: It is larger than `MOST_ANSWERED`.
        """
        if len(body) > MOST_ANSWERED:
            raise DataError(f"a message of {len(body)} bytes is too large to send")
        return HEAD.pack(len(body), self._seal(body)) + body

    def opened(self, head: bytes, body: bytes) -> bytes:
        """Verifies the seal and returns the body.

        Raises:
            DataError: The message was changed in transit.
        """
        if not hmac.compare_digest(HEAD.unpack(head)[1], self._seal(body)):
            raise DataError("a message was changed in transit")
        return body

    def _seal(self, body: bytes) -> bytes:
        number, self._number = self._number, self._number + 1
        return blake2b(number.to_bytes(8, "little") + body, digest_size=16, key=self._key).digest()


def length_in(head: bytes, most: int) -> int:
    """Returns the length in bytes of the message after a header.

    Raises:
        DataError: The length exceeds `most`.
    """
    length = int(HEAD.unpack(head)[0])
    if length > most:
        raise DataError(f"a message of {length} bytes is too large to read")
    return length


def encoded(message: Said | Answer) -> bytes:
    """Returns a message as bytes."""
    return msgspec.msgpack.encode(message)


def said_in(body: bytes) -> Said:
    """Decodes a message to the first host.

    Raises:
        DataError: It is not a valid message.
    """
    return _decoded(_SAID, body)


def answer_in(body: bytes) -> Answer:
    """Decodes an answer.

    Raises:
        DataError: It is not a valid answer.
    """
    return _decoded(_ANSWER, body)


def _decoded(decoder: msgspec.msgpack.Decoder[Kind], body: bytes) -> Kind:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"not understood: {error}") from error


# --- TLS ---------------------------------------------------------------------------------------------------------


def server_context(certificate: Path, key: Path | None) -> tuple[ssl.SSLContext, str]:
    """Returns the TLS context of the first host, and the SHA-256 by which other hosts recognise its certificate.

    Raises:
        UsageError: The files are not a certificate with its key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password="")  # without a password, OpenSSL would ask for one
        text = certificate.read_text(encoding="ascii", errors="replace")
        first = text[text.index(ssl.PEM_HEADER):text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)]
        shown = sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
    except (OSError, ValueError) as error:
        raise UsageError(f"--hosts-cert {certificate}: {getattr(error, 'strerror', None) or error}",
                         hint="a PEM file with a certificate and its key without a password, or the key in "
                              "--hosts-key FILE") from error
    return context, shown


def client_context() -> ssl.SSLContext:
    """Returns the TLS context of the other hosts. It does not verify names and dates of certificates, because the first
    host is identified by the certificate announced in the store, and clocks of hosts may be wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def expect_certificate(connection: ssl.SSLSocket, shown: str) -> None:
    """Checks that the other side uses the announced certificate.

    Raises:
        DataError: It uses another one.
    """
    if not hmac.compare_digest(sha256(connection.getpeercert(binary_form=True) or b"").hexdigest(), shown):
        raise DataError("its certificate is not the one that the first host announced")
