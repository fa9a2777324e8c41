"""The protocol between a launcher and its watcher: an order on standard input, messages on standard output.

The watcher's standard input ends when the launcher does, for whatever reason. If the job ended normally, the launcher
first writes `END`: the watcher then takes a last look and reports on the whole job.
"""

from __future__ import annotations

import math
import os
import socket
from contextlib import suppress
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from distprof.contract.watch_state import LogTo
from distprof.errors import UsageError
from distprof.hidden import hidden
from distprof.storage.credentials import is_url

END = b"end\n"
OFF = "off"
SHORTEST_S = 60.0
"""Smallest value of `--window-every`."""
MOST_PORT = 65535
WEB = ("http://", "https://")
"""Prefixes of a target that is a URL, not a command."""
SIGNALS = ("/v1/metrics", "/v1/logs", "/v1/traces")
"""Endings that a collector's URL must not have, as exporters append them."""


class WatchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to watch, and whom to tell. It comes on standard input, because command lines are visible to all users."""

    directory: str
    """Absolute path of the run directory."""
    run_id: str
    is_alone: bool
    """Whether no launcher of another host can watch the same directory."""
    metrics: str | None = None
    """`PORT` or `HOST:PORT`."""
    on_finding: str | None = None
    """A command, or an http(s) URL."""
    window_every_s: float | None = None
    """Shortest time between two recordings that the watch requests by itself; 0 for none, None for the default."""
    otlp: str | None = None
    """URL of a collector, without `/v1/metrics`."""
    log_to: LogTo | None = None
    """Where series and findings are logged, by the watcher (tensorboard) or by the ranks."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message from the watcher to its launcher: a line of JSON."""

    kind: Literal["say", "end", "crash"]
    """say: something new; end: the last message, with lines about the whole job; crash: the watcher failed."""
    lines: list[str]


def address(text: str, flag: str) -> tuple[str, int]:
    """Parses an address: `9464` -> ("", 9464), `localhost:9464` -> ("localhost", 9464).

    Raises:
        UsageError: It is neither a port nor `HOST:PORT`.
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= MOST_PORT:
        raise UsageError(f"{flag} must be a port from 1 to {MOST_PORT}, or HOST:PORT, not {text!r}",
                         hint=f"{flag} 9464")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listening(host: str, port: int) -> socket.socket:
    """Returns a listening socket; without `host`, for IPv4 and IPv6 on one port.

    Raises:
        OSError: The port is in use, or the address does not belong to this host.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0] if host else socket.AF_INET
    if not host and socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be disabled
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:  # its text has the address as well
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error


def check_target(text: str) -> None:
    """Checks the value of `--on-finding`.

    Raises:
        UsageError: It is empty, or a URL of another scheme than http(s).
    """
    if not text.strip() or (is_url(text.strip()) and not text.strip().lower().startswith(WEB)):
        raise UsageError(f"--on-finding must be a command or an http(s) URL, not {text!r}",
                         hint="--on-finding 'mail -s distprof me@example.org', or --on-finding https://host/hook")


def check_collector(text: str) -> None:
    """Checks the value of `--otlp`.

    Raises:
        UsageError: It is not the http(s) URL of a collector.
    """
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.rstrip("/").endswith(SIGNALS):
        raise UsageError(f"--otlp must be the http(s) URL of a collector, without /v1/..., not {hidden(text)!r}",
                         hint="--otlp http://localhost:4318")


def every_s(text: str | None) -> float | None:
    """Converts the value of `--window-every`, in minutes, to seconds; 0 for `off`, None if it is not given.

    Raises:
        UsageError: It is neither `off` nor a number of minutes, at least 1.
    """
    if text is None:
        return None
    if text == OFF:
        return 0.0
    try:
        found = 60 * float(text)
    except ValueError:
        found = math.nan
    if not found >= SHORTEST_S:
        raise UsageError(f"--window-every must be a number of minutes, at least 1, or off, not {text!r}",
                         hint="--window-every 30")
    return found
