"""A proxy for an HTTP server that injects faults of networks and storages into some answers."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from support.jobs import PATIENCE_S

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
Act = Callable[["Handler", "Answer"], None]


@dataclass
class Answer:
    """An answer of the server."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


NO_ANSWER = Answer(0, [], b"")


@dataclass
class Fault:
    """A fault, and the requests to which it applies."""

    act: Act
    method: str = ".*"
    path: str = ".*"
    """Regex for the whole target, with its query."""
    times: int | None = None
    """How often it applies; None: always."""
    after: int = 0
    """Number of matching requests that pass before."""
    done: int = 0

    @property
    def swallows(self) -> bool:
        """Whether the server must not see the request, because its answer would be dropped but not its effect."""
        return self.act is hangs_up or self.act.__qualname__.startswith("answers")

    def fits(self, method: str, path: str) -> bool:
        """Returns whether the fault applies to a request, and counts it."""
        if not re.fullmatch(self.method, method) or not re.fullmatch(self.path, path):
            return False
        if self.after:
            self.after -= 1
            return False
        if self.times is not None and self.done >= self.times:
            return False
        self.done += 1
        return True


def answers(status: int, code: str) -> Act:
    """Answers with an S3 error."""
    return lambda handler, _: handler.answer(Answer(status, [("Content-Type", "application/xml")],
                                                    ERROR.format(code=code).encode()))


def hangs_up(handler: Handler, _: Answer) -> None:
    """Closes the connection without an answer."""
    handler.close_connection = True
    handler.connection.close()


def cuts(num_bytes: int) -> Act:
    """Closes the connection after `num_bytes` of the body."""
    def act(handler: Handler, answer: Answer) -> None:
        handler.answer(answer, num_bytes)
        hangs_up(handler, answer)

    return act


def waits(seconds: float) -> Act:
    """Delays the answer."""
    def act(handler: Handler, answer: Answer) -> None:
        time.sleep(seconds)
        handler.answer(answer)

    return act


def held_until(event: threading.Event) -> Act:
    """Delays the answer until an event is set."""
    return does(lambda: event.wait(PATIENCE_S))


def does(work: Callable[[], object]) -> Act:
    """Calls `work` before the answer is sent."""
    def act(handler: Handler, answer: Answer) -> None:
        work()
        handler.answer(answer)

    return act


@dataclass
class FaultyProxy:
    """The faults of a proxy, and the requests that it has seen."""

    target: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Method and target of each request."""
    ranges: list[str] = field(default_factory=list)
    """Range headers of requests."""
    sent: dict[str, int] = field(default_factory=dict)
    """Target of requests -> total size of their bodies in bytes."""
    address: str = ""

    def add(self, act: Act, **which: Any) -> Fault:
        """Adds a fault; if several match a request, the first one applies."""
        self.faults.append(Fault(act, **which))
        return self.faults[-1]

    def num_seen(self, method: str, path: str) -> int:
        """Returns the number of requests whose method and target match these patterns."""
        return sum(bool(re.fullmatch(method, one) and re.fullmatch(path, where)) for one, where in self.seen)


class Handler(BaseHTTPRequestHandler):
    """A connection of a client."""

    protocol_version = "HTTP/1.1"
    server: Any

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (OSError, ValueError):  # the client or a fault closed the connection
            self.close_connection = True

    def _pass(self) -> None:
        proxy: FaultyProxy = self.server.proxy
        body = self._body()
        with self.server.lock:
            proxy.seen.append((self.command, self.path))
            proxy.sent[self.path] = proxy.sent.get(self.path, 0) + len(body)
            proxy.ranges += [self.headers["Range"]] if "Range" in self.headers else []
            fault = next((one for one in proxy.faults if one.fits(self.command, self.path)), None)
        answer = NO_ANSWER if fault is not None and fault.swallows else self._asked(body)
        if fault is None:
            self.answer(answer)
        else:
            fault.act(self, answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def _body(self) -> bytes:
        """Returns the body unchanged, because signatures cover these bytes."""
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = bytearray()
            while size := int((line := self.rfile.readline()).split(b";")[0], 16):
                pieces += line + self.rfile.read(size) + self.rfile.readline()
            return bytes(pieces) + line + self.rfile.readline()
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _asked(self, body: bytes) -> Answer:
        where = urlsplit(self.server.proxy.target)
        connection = HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE_S)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            found = connection.getresponse()
            return Answer(found.status, found.getheaders(), found.read())
        finally:
            connection.close()

    def answer(self, answer: Answer, num_bytes: int | None = None) -> None:
        """Sends an answer, or only the first `num_bytes` of its body."""
        self.send_response_only(answer.status)
        length = len(answer.body)
        for name, value in answer.headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = int(value)
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[:num_bytes])
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Writes no access log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """Ignores errors, because connections are broken on purpose."""


@contextmanager
def faulty_proxy(target: str) -> Iterator[FaultyProxy]:
    """Starts a proxy for a server; without faults it changes nothing."""
    proxy = FaultyProxy(target)
    server = _Server(("127.0.0.1", 0), Handler)
    server.proxy, server.lock = proxy, threading.Lock()  # type: ignore[attr-defined]
    proxy.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
