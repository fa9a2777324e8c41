"""A server for one trace that only this machine can reach: named files under an unguessable token."""

from __future__ import annotations

import io
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from distprof.errors import DistprofError

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
"""Accepted host names; others may be an attack (DNS rebinding)."""
LOADED = "loaded"
"""Name that the page requests after Perfetto has received the trace."""
QUIET_S = 2.0
"""After this many seconds without a request, the browser is assumed to have everything it needs."""
STALLED_S = 60.0
"""A connection without progress is closed after this many seconds."""
CHUNK_BYTES = 1 << 20
ALWAYS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
          "Cross-Origin-Resource-Policy": "same-origin"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Content that the server offers."""

    content: bytes | Path
    type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    origin: str | None = None
    """The only other origin whose pages may read it; None: no other."""
    on_break: Callable[[], None] | None = None
    """Called if the browser disconnects before it has all of it."""


class TraceServer(ThreadingHTTPServer):
    """A server of `files`.

    Args:
        files: Name after the token in the path -> content.
        port: Port to listen on; 0: any free port.

    Raises:
        DistprofError: The port is not available.
    """

    daemon_threads = True
    block_on_close = False  # a browser that stopped reading must not delay the end

    def __init__(self, files: Mapping[str, Served], port: int) -> None:
        self.files, self.token = files, secrets.token_urlsafe(24)
        self.loaded, self.last_used = threading.Event(), time.monotonic()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise DistprofError(f"cannot listen on --port {port}: {error.strerror}",
                                hint="leave out --port to use any free port") from error

    @property
    def address(self) -> str:
        """URL of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def wait(self, limit_s: float) -> bool:
        """Waits until a browser has loaded the trace and the page.

        Returns:
            False if there was no request for `limit_s` seconds.
        """
        while not self.loaded.wait(max(self.last_used + limit_s - time.monotonic(), 0)):
            if time.monotonic() >= self.last_used + limit_s:
                return False
        while (quiet_s := time.monotonic() - self.last_used) < QUIET_S:
            time.sleep(QUIET_S - quiet_s)
        return True

    def handle_error(self, *_: object) -> None:
        """Ignores errors, because a browser may disconnect at any time."""


@contextmanager
def serving(server: TraceServer) -> Iterator[None]:
    """Serves in a thread inside the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """One connection, with one request."""

    server: TraceServer
    server_version, sys_version = "distprof", ""
    error_message_format, error_content_type = "%(code)d %(message)s\n", "text/plain"
    timeout = STALLED_S

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def _answer(self, *, with_content: bool) -> None:
        found = self._found()
        if isinstance(found, int):
            self.send_error(found)
            return
        self.server.last_used = time.monotonic()
        content = found.content.open("rb") if isinstance(found.content, Path) else io.BytesIO(found.content)
        with content:
            self._send_head(found, content.seek(0, io.SEEK_END))
            content.seek(0)
            try:
                while with_content and (chunk := content.read(CHUNK_BYTES)):
                    self.wfile.write(chunk)
                    self.server.last_used = time.monotonic()
            except OSError:
                if found.on_break is not None:
                    found.on_break()
                raise
        if with_content and self._name() == LOADED:
            self.server.loaded.set()

    def _found(self) -> Served | int:
        """Returns the requested content, or an HTTP error code. Without the token, every name gets the same code."""
        if (self.headers.get("Host") or "").partition(":")[0] not in NAMES:
            return 403
        name = self._name()
        found = self.server.files.get(name) if name is not None else None
        if found is None:
            return 404
        origin = self.headers.get("Origin")
        return found if origin is None or origin in (found.origin, self._own_origin()) else 403

    def _name(self) -> str | None:
        """Returns the part of the path after the token; None if the token is wrong."""
        token, slash, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        is_ours = secrets.compare_digest(token.encode(errors="replace"), self.server.token.encode())
        return name if is_ours and slash else None

    def _own_origin(self) -> str:
        return f"http://{self.headers.get('Host')}"

    def _send_head(self, found: Served, length: int) -> None:
        self.send_response(200)
        headers = {**ALWAYS, "Content-Type": found.type, "Content-Length": str(length), **found.headers}
        if found.origin is not None:
            headers["Vary"] = "Origin"
            if self.headers.get("Origin") == found.origin:
                headers["Access-Control-Allow-Origin"] = found.origin
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Writes no access log."""
