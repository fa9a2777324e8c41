"""`--metrics PORT`: serves the state of a job as Prometheus or OpenMetrics text, and as `/state.json`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import msgspec

from distprof.contract.watch_series import SUFFIXES, Family, families
from distprof.contract.watch_state import WatchState
from distprof.launch.watching.watcher_protocol import listening

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

STALLED_S = 10.0
"""Timeout of a connection that sends or reads nothing."""


class Exposed:
    """A collector of `prometheus_client` for one state.

    Args:
            state: The state; None if no step was watched yet.
    """

    def __init__(self, state: WatchState | None) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Returns the metric families, named by Prometheus's conventions."""
        return map(_family, families(self._state))


def _family(one: Family) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    name = one.name.replace(".", "_") + SUFFIXES[one.unit]
    if one.kind == "info":
        info = InfoMetricFamily(name, one.text, labels=())
        for key, _ in one.points:
            info.add_metric((), dict(zip(one.labels, key, strict=True)))
        return info
    family = (CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily)(name, one.text, labels=one.labels)
    for key, value in one.points:
        family.add_metric(list(key), value)
    return family


def exposition(state: WatchState | None, accept: str) -> tuple[bytes, str]:
    """Returns all metrics as text in the format that a scraper accepts, and its content type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Exposed(state))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


class MetricsServer(ThreadingHTTPServer):
    """Serves `/metrics` and `/state.json` from `state`, in background threads.

    Args:
        host: Address to listen on; "" for all addresses of this machine.
        port: Port to listen on; 0 for any free one.

    Raises:
        OSError: The port is taken, or not permitted.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int) -> None:
        self.state: WatchState | None = None
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening(host, port)  # never looks up the name of this machine, which may take long
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "distprof", self.server_address[1]
        threading.Thread(target=self.serve_forever, name="distprof metrics", daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """Ignores errors of a connection: the client may have gone."""


class _Handler(BaseHTTPRequestHandler):
    """Handles one connection."""

    server: MetricsServer
    server_version, sys_version = "distprof", ""
    error_message_format, error_content_type = "%(code)d %(message)s\n", "text/plain"
    timeout = STALLED_S

    def do_GET(self) -> None:
        path, state = self.path.partition("?")[0], self.server.state
        if path == "/metrics":
            self._answer(*exposition(state, self.headers.get("Accept") or ""))
        elif path == "/state.json" and state is not None:
            self._answer(msgspec.json.encode(state), "application/json")
        else:
            self.send_error(503 if path == "/state.json" else 404)

    def _answer(self, content: bytes, content_type: str) -> None:
        self.send_response(200)
        for name, value in (("Content-Type", content_type), ("Content-Length", str(len(content))),
                            ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Writes no access log."""
