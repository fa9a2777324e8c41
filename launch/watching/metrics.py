"""`--metrics PORT`: what is known of a job as Prometheus and OpenMetrics want it, and as `/state.json`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import msgspec

from distprof import __version__
from distprof.contract.watch_state import RankState, WatchFinding, WatchState

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

STALLED_S = 10.0
PHASES = ("data", "forward", "backward", "optimizer", "device")
MEMORY = ("host", "device")


class Exposed:
    """A collector of `prometheus_client` for one state.

    Args:
        state: None: nothing was seen yet.
    """

    def __init__(self, state: WatchState | None) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Families of metrics, 12 series for a rank at most and one for each of its findings' kinds."""
        from prometheus_client.core import InfoMetricFamily

        yield InfoMetricFamily("distprof_build", "The distprof that watches.", value={"version": __version__})
        if self._state is not None:
            yield InfoMetricFamily("distprof_run", "The job.", value={"run_id": self._state.run_id})
            yield from self._job(self._state)
            yield from self._ranks(self._state.ranks)
            yield from self._findings(self._state.findings)

    def _job(self, state: WatchState) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        yield _gauge("distprof_running", "1 while the job runs.", [], [((), float(state.running))])
        yield _gauge("distprof_ranks", "Ranks that are watched.", [], [((), float(len(state.ranks)))])
        yield _gauge("distprof_state_timestamp_seconds", "When the ranks were last looked at.", [],
                     [((), state.time_ns / 1e9)])
        yield _gauge("distprof_job_step_seconds", "Median time of a step over the watched job.", [],
                     [((), _seconds(state.step_ns))])
        yield CounterMetricFamily("distprof_job_steps", "Steps that all ranks have ended.", value=state.num_steps)

    def _ranks(self, ranks: Iterable[RankState]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, InfoMetricFamily

        every = [(str(one.rank), one) for one in ranks]
        about = InfoMetricFamily("distprof_rank", "Where a rank runs.", labels=["rank"])
        steps = CounterMetricFamily("distprof_steps", "Steps that a rank has ended.", labels=["rank"])
        for rank, one in every:
            about.add_metric([rank], {"host": one.host})
            steps.add_metric([rank], one.step + 1)
        yield about
        yield steps
        yield _gauge("distprof_step_seconds", "Mean time of the steps of the last 10 s.", ["rank"],
                     (((rank,), _seconds(one.step_ns)) for rank, one in every))
        yield _gauge("distprof_waiting_ratio", "Share of a step in which a rank waits for others.", ["rank"],
                     (((rank,), one.waiting_ratio) for rank, one in every))
        yield _gauge("distprof_phase_seconds", "Time of a part of a step, mean of the last 10 s.", ["rank", "phase"],
                     (((rank, phase), _seconds(getattr(one, f"{phase}_ns"))) for rank, one in every
                      for phase in PHASES))
        yield _gauge("distprof_memory_bytes", "Memory of a rank's process, and of tensors on its device.",
                     ["rank", "where"], (((rank, where), getattr(one, f"{where}_bytes")) for rank, one in every
                                         for where in MEMORY))
        yield _gauge("distprof_last_step_timestamp_seconds", "When a rank's last step ended, by its host's clock.",
                     ["rank"], (((rank,), one.time_ns / 1e9) for rank, one in every))

    def _findings(self, findings: Iterable[WatchFinding]) -> Iterator[Metric]:
        active, cost = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
        for finding in findings:
            for rank in map(str, finding.ranks) if finding.ranks else ("",):
                key = (finding.kind, rank)
                active[key] = max(active.get(key, 0.0), float(finding.until_step is None))
                if finding.cost_ns is not None:
                    cost[key] = cost.get(key, 0.0) + finding.cost_ns / 1e9
        yield _gauge("distprof_finding_active", "1 while it goes on, 0 once it has ended.", ["kind", "rank"],
                     active.items())
        yield _gauge("distprof_finding_cost_seconds", "Time that the job has lost by it.", ["kind", "rank"],
                     cost.items())


def _gauge(name: str, text: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], float | None]]) -> Metric:
    """Without those that are not known."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values:
        if value is not None:
            family.add_metric(list(key), value)
    return family


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9


def exposition(state: WatchState | None, accept: str) -> tuple[bytes, str]:
    """The text of all metrics in the format that a scraper accepts, and its type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Exposed(state))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


class MetricsServer(ThreadingHTTPServer):
    """Answers `/metrics` and `/state.json` from `state`, in threads of its own.

    Args:
        host: "" for all addresses of this machine.
        port: To listen on; 0 for any.

    Raises:
        OSError: The port is taken, or may not be had.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, host: str, port: int) -> None:
        self.state: WatchState | None = None
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        threading.Thread(target=self.serve_forever, name="distprof metrics", daemon=True).start()

    def server_bind(self) -> None:
        """Without asking a name server for the name of this machine, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "distprof", self.server_address[1]

    def handle_error(self, *_: object) -> None:
        """Who asked may have gone."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

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

    def log_message(self, *_: Any) -> None:
        """Nobody reads an access log here."""
