"""Wrong answers of a server: acts for a `FaultyProxy`."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Mapping

from isal import igzip

from support.faulty_proxy import Act, Answer, Handler, hangs_up

MOST_S = 30.0
"""How long a server sends an endless answer, in seconds; far longer than a client should read it."""
BOMB = gzip.compress(igzip.compress(bytes(1 << 28), 1))
"""A few hundred bytes that decompress to 260 kB, and these to 256 MB."""


def _raw(*pieces: bytes, pause_s: float = 0.0) -> Act:
    """Sends raw bytes, then hangs up."""
    def act(handler: Handler, answer: Answer) -> None:
        for piece in pieces:
            handler.wfile.write(piece)
            handler.wfile.flush()
            time.sleep(pause_s)
        hangs_up(handler, answer)

    return act


def _head(status: str, *fields: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *fields, "", "")).encode()


def _chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def _status(status: str, *fields: str) -> Act:
    return _raw(_head(status, "Content-Length: 2", *fields), b"no")


def _again_and_again(begin: bytes, piece: Callable[[int], bytes], pause_s: float = 0.0) -> Act:
    """Sends pieces endlessly, until `MOST_S`."""
    def act(handler: Handler, answer: Answer) -> None:
        until, number = time.monotonic() + MOST_S, 0
        handler.wfile.write(begin)
        while time.monotonic() < until:
            handler.wfile.write(piece(number))
            handler.wfile.flush()
            time.sleep(pause_s)
            number += 1
        hangs_up(handler, answer)

    return act


def _changed(change: Callable[[Answer], Answer]) -> Act:
    """Sends a modified answer."""
    return lambda handler, answer: handler.answer(change(answer))


def _said(answer: Answer, **fields: str) -> Answer:
    """Returns the answer with these headers replaced."""
    said = {name.replace("_", "-").lower(): value for name, value in fields.items()}
    left = [(name, value) for name, value in answer.headers if name.lower() not in said]
    return Answer(answer.status, [*left, *said.items()], answer.body)


def _fields(answer: Answer) -> list[str]:
    """Returns the headers of an answer, except its length and connection."""
    return [f"{name}: {value}" for name, value in answer.headers
            if name.lower() not in ("content-length", "connection")]


def _trickles(handler: Handler, answer: Answer) -> None:
    """Sends the correct answer one byte at a time."""
    length = f"Content-Length: {len(answer.body)}"
    fields = _fields(answer)
    until = time.monotonic() + MOST_S
    for byte in _head(f"{answer.status} OK", length, *fields) + answer.body:
        if time.monotonic() > until:
            break
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(0.1)
    hangs_up(handler, answer)


def _claims(length: int) -> Act:
    """Sends a Content-Length that differs from the length of the body."""
    def act(handler: Handler, answer: Answer) -> None:
        handler.wfile.write(_head(f"{answer.status} OK", f"Content-Length: {length}", *_fields(answer)) + answer.body)
        handler.wfile.flush()
        hangs_up(handler, answer)

    return act


def _echoes(handler: Handler, answer: Answer) -> None:
    """Repeats the credentials and target of the request where error messages of clients may show them."""
    told = f'{handler.headers.get("Authorization", "nothing")} {handler.path}'
    handler.wfile.write(_head(f"400 you said {told}", f"X-Said: {told}", f"Location: {told}", "Content-Length: 0"))
    hangs_up(handler, answer)


def _redirects_to_itself(handler: Handler, answer: Answer) -> None:
    handler.wfile.write(_head("302 Found", f"Location: {handler.path}", "Content-Length: 0"))
    hangs_up(handler, answer)


def _hangs(handler: Handler, answer: Answer) -> None:
    time.sleep(MOST_S / 2)
    hangs_up(handler, answer)


def _repeats_its_links(handler: Handler, answer: Answer) -> None:
    """Answers every request with the same page of links to folders."""
    links = "".join(f'<a href="rank{number:05d}/">x</a>' for number in range(9)).encode()
    handler.answer(Answer(200, [("Content-Type", "text/html")], links))


OK = _head("200 OK", "Content-Type: text/html", "Transfer-Encoding: chunked")
LIES: Mapping[str, Act] = {
    **{f"status {status}": _status(f"{status} So") for status in (
        204, 206, 300, 304, 400, 401, 403, 404, 405, 407, 408, 410, 412, 416, 418, 429, 451, 500, 501, 502, 503, 504,
        999)},
    "redirects to itself": _redirects_to_itself,
    "redirects to nobody": _status("302 Found", "Location: http://127.0.0.1:9/x"),
    "redirects to a user": _status("307 Found", "Location: http://eve:Ev3sS3cr3t@127.0.0.1:9/x?token=Ev3sS3cr3t"),
    "redirects to a file": _status("302 Found", "Location: file:///etc/passwd"),
    "redirects to nonsense": _status("301 Found", "Location: http://[::zz]:99999/%%%"),
    "redirects nowhere": _status("301 Found"),
    "echoes": _echoes,
    "hangs up": hangs_up,
    "hangs": _hangs,
    "hangs in its head": _again_and_again(b"HTTP/1.1 200 OK\r\n", lambda _: b"", 1.0),
    "hangs in its body": _again_and_again(OK + b"5\r\n<a hr\r\n", lambda _: b"", 1.0),
    "trickles": _trickles,
    "trickles without end": _again_and_again(OK, lambda _: b"1\r\nx\r\n", 0.05),
    "floods": _again_and_again(OK, lambda _: _chunk(bytes(1 << 16))),
    "floods with links": _again_and_again(OK, lambda number: _chunk("".join(
        f'<a href="rank{number:012d}/{one}">link</a>' for one in range(999)).encode())),
    "has headers without end": _again_and_again(b"HTTP/1.1 200 OK\r\n", lambda number: f"X-{number}: y\r\n".encode()),
    "has a long header": _raw(b"HTTP/1.1 200 OK\r\nX: " + bytes([120]) * (1 << 20)),
    "claims 1 more": _claims(1 << 20), "claims 4 EB": _claims(1 << 62), "claims 100 digits": _claims(10 ** 100),
    "claims less than nothing": _claims(-1), "claims nothing": _claims(0),
    "is no HTTP": _raw(b"\x16\x03\x01\x00\xa5" * 100), "is HTTP 9": _raw(b"HTTP/9.9 200 OK\r\n\r\n"),
    "has chunks of no size": _raw(OK + b"zz\r\nabc\r\n"),
    "has a chunk of 1 EB": _raw(OK + b"FFFFFFFFFFFFFFF\r\nabc\r\n"),
    "is gzip": _changed(lambda answer: Answer(answer.status, [*answer.headers, ("Content-Encoding", "gzip")],
                                              gzip.compress(answer.body))),
    "says that it is gzip": _changed(lambda answer: _said(answer, content_encoding="gzip")),
    "is a bomb": _changed(lambda answer: Answer(answer.status, [*answer.headers, ("Content-Encoding", "gzip, gzip")],
                                                BOMB)),
    "is empty": _changed(lambda answer: Answer(answer.status, answer.headers, b"")),
    "is cut": _changed(lambda answer: Answer(answer.status, answer.headers, answer.body[:len(answer.body) // 2])),
    "is longer": _changed(lambda answer: Answer(answer.status, answer.headers, answer.body * 2)),
    "is another part": _changed(lambda answer: _said(answer, content_range="bytes 7-99/100")),
    "is the whole": _changed(lambda answer: Answer(200, answer.headers, answer.body[::-1])),
    "is of another type": _changed(lambda answer: _said(answer, content_type="text/html; charset=no-such-set")),
    "is of another time": _changed(lambda answer: _said(answer, last_modified="Thu, 99 Foo 0000", etag="W/\x01\x80")),
    "is garbage": _changed(lambda answer: Answer(answer.status, answer.headers, bytes(range(256)) * 9)),
    "repeats its links": _repeats_its_links,
}
"""Name of a wrong answer -> act."""
