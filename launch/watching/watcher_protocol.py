"""What a launcher and its watcher tell each other: an order on standard input, messages on standard output.

The watcher's standard input ends with the launcher, however that goes. Where the launcher ends well it writes `END`
before: then the watcher takes a last look and tells what it knows of the whole job.
"""

from __future__ import annotations

import math
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
MOST_PORT = 65535
WEB = ("http://", "https://")
SIGNALS = ("/v1/metrics", "/v1/logs", "/v1/traces")


class WatchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be watched, and who is to be told. Comes on standard input, as everybody may list arguments."""

    directory: str
    """Of the run, absolute."""
    run_id: str
    is_alone: bool
    """False where launchers of other hosts may watch the same directory."""
    metrics: str | None = None
    """`PORT` or `HOST:PORT`."""
    on_finding: str | None = None
    """A command or a URL."""
    window_every_s: float | None = None
    """Seconds between two recordings that the watch asks for by itself; None: as usual."""
    otlp: str | None = None
    """The URL of a collector, without `/v1/metrics`."""
    log_to: LogTo | None = None
    """What else is written, here (tensorboard) or by the ranks."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """From the watcher to its launcher, a line of JSON."""

    kind: Literal["say", "end", "crash"]
    """say: something new; end: the last one, `lines` are about the whole job; crash: nothing is watched any more."""
    lines: list[str]


def address(text: str, flag: str) -> tuple[str, int]:
    """`9464` -> ("", 9464), `localhost:9464` -> ("localhost", 9464).

    Raises:
        UsageError: It is neither.
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= MOST_PORT:
        raise UsageError(f"{flag} must be a port from 1 to {MOST_PORT}, or HOST:PORT, not {text!r}",
                         hint=f"{flag} 9464")
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_target(text: str) -> None:
    """Looks whether `--on-finding` is something that can be told.

    Raises:
        UsageError: It is empty, or a URL that takes no POST.
    """
    if not text.strip() or (is_url(text.strip()) and not text.strip().lower().startswith(WEB)):
        raise UsageError(f"--on-finding must be a command or an http(s) URL, not {text!r}",
                         hint="--on-finding 'mail -s distprof me@example.org', or --on-finding https://host/hook")


def check_collector(text: str) -> None:
    """Looks whether `--otlp` is the URL of a collector.

    Raises:
        UsageError: It is not.
    """
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.rstrip("/").endswith(SIGNALS):
        raise UsageError(f"--otlp must be the http(s) URL of a collector, without /v1/..., not {hidden(text)!r}",
                         hint="--otlp http://localhost:4318")


def every_s(text: str | None) -> float | None:
    """Seconds between two closer looks, of minutes; 0 for `off`; None where nobody said.

    Raises:
        UsageError: It is something else.
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
