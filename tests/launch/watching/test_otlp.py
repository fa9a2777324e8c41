"""`--otlp`: what a collector gets, decoded as collectors decode it; and what follows where there is none."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from distprof.contract.watch_series import families
from distprof.launch.watching import otlp
from distprof.launch.watching.metrics import SUFFIXES, exposition
from distprof.launch.watching.otlp import Collector, signal_url
from distprof.launch.watching.watch_process import WatchProcess
from support.made_up_states import job_state, slow_rank
from support.ports import free_port
from support.watched_ranks import PROGRAM, MadeUpRank, make_run, order

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

PATIENCE_S = 60.0
REQUESTS = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/logs": ExportLogsServiceRequest}


class Taken:
    """What came, decoded."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.logs: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def add(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        of = REQUESTS[path].FromString(body)
        (self.metrics if path.endswith("metrics") else self.logs).append(of)
        self.headers.append(headers)

    def resource(self) -> dict[str, str]:
        return attributes(self.metrics[-1].resource_metrics[0].resource.attributes)

    def series(self, newest: int = -1) -> dict[tuple[str, str], float]:
        """(name, attributes) -> value, of one export."""
        found = {}
        for metric in self.metrics[newest].resource_metrics[0].scope_metrics[0].metrics:
            for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points:
                found[metric.name, json.dumps(attributes(point.attributes), sort_keys=True)] = point.as_double
        return found

    def events(self) -> list[Any]:
        return [one for request in self.logs for one in request.resource_logs[0].scope_logs[0].log_records]


def attributes(of: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in of}


def _value(value: Any) -> Any:
    which = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if which == "array_value" else getattr(value, which)


@contextmanager
def collector(code: int = 200) -> Iterator[Taken]:
    """One that answers with a code; with 0 it never does."""
    taken, over = Taken(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.add(self.path, self.rfile.read(int(self.headers["Content-Length"])), dict(self.headers))
            if not code:
                over.wait(PATIENCE_S)
                return
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    taken.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield taken
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def sent(state: Any, events: tuple[tuple[str, Any], ...] = (), code: int = 200) -> tuple[Taken, list[str]]:
    """What comes of a state and findings, and what is complained about."""
    said = list[str]()
    with collector(code) as taken:
        telling = Collector(taken.url, Path("/runs/a"), "made-up", said.append)
        telling.show(state)
        for one in events:
            telling.tell(*one)
        assert telling.finish(PATIENCE_S)
    return taken, said


def test_a_collector_gets_what_prometheus_gets():
    state = job_state()
    taken, said = sent(state)
    assert said == []
    ours = {(name, key): value for (name, key), value in taken.series().items()}
    assert ours["distprof.step", '{"rank": "0"}'] == 0.02
    assert ours["distprof.phase", '{"phase": "forward", "rank": "1"}'] == 0.023
    assert ours["distprof.finding.active", '{"kind": "slow_rank", "rank": "1"}'] == 1
    assert ours["distprof.rank.info", '{"host": "host0", "rank": "3"}'] == 1
    lines = [line for line in exposition(state, "")[0].decode().splitlines() if not line.startswith("#")]
    assert len(lines) == len(ours) > 40
    for metric in taken.metrics[-1].resource_metrics[0].scope_metrics[0].metrics:
        name = metric.name.replace(".", "_") + SUFFIXES[metric.unit] + ("_total" if metric.HasField("sum") else "")
        assert [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))], name
    assert taken.resource()["service.name"] == "distprof" and taken.resource()["service.instance.id"] == "made-up"


def test_steps_are_sums_that_grow_and_times_are_gauges():
    taken, _ = sent(job_state())
    metrics = {one.name: one for one in taken.metrics[-1].resource_metrics[0].scope_metrics[0].metrics}
    steps = metrics["distprof.steps"].sum
    assert steps.is_monotonic and steps.aggregation_temporality == 2 and steps.data_points[0].as_double == 7000
    assert metrics["distprof.step"].unit == "s" and metrics["distprof.memory"].unit == "By"
    assert metrics["distprof.step"].gauge.data_points[0].time_unix_nano > 1e18


def test_findings_are_log_events():
    ended = slow_rank(until_step=6500, why=["GPU 3 runs at 1,095 of 1,980 MHz: thermal"])
    taken, said = sent(job_state(), (("new", slow_rank()), ("ended", ended)))
    new, over = taken.events()
    assert said == [] and (new.event_name, new.severity_text, new.severity_number) == (
        "distprof.finding.new", "WARN", 13)
    assert new.body.string_value.startswith("rank 1 slow from step 6,204 on")
    told = attributes(new.attributes)
    assert told["distprof.finding.ranks"] == [1] and told["distprof.finding.onset_step"] == 6204
    assert "distprof.finding.module" not in told and "distprof.finding.text" not in told
    assert (over.event_name, over.severity_text) == ("distprof.finding.ended", "INFO")
    assert attributes(over.attributes)["distprof.finding.why"] == ended.why


def test_headers_of_the_usual_variables_are_sent(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "llama")
    taken, _ = sent(job_state())
    assert taken.headers[0]["x-key"] == "abc" and taken.resource()["service.name"] == "llama"


def test_a_collector_that_refuses_is_one_line():
    taken, said = sent(job_state(), (("new", slow_rank()), ("new", slow_rank(2))), code=401)
    assert sorted(said) == ["--otlp: 127.0.0.1 answers 401: findings were not sent",
                            "--otlp: 127.0.0.1 answers 401: metrics were not sent"]
    assert len(taken.metrics) == len(taken.logs) == 1  # it is not asked again


def test_where_nobody_listens_it_is_one_line_and_soon_over(monkeypatch):
    monkeypatch.setattr(otlp, "EXPORT_S", 0.5)
    said = list[str]()
    telling = Collector(f"http://127.0.0.1:{free_port()}/token", Path("/runs/a"), "made-up", said.append)
    telling.show(job_state())
    assert telling.finish(PATIENCE_S)
    assert said == ["--otlp: 127.0.0.1 does not answer: metrics were not sent"]


@pytest.mark.long
def test_a_collector_that_hangs_holds_nobody_up():
    with collector(0) as taken:
        telling = Collector(taken.url, Path("/runs/a"), "made-up", lambda _: None)
        began = time.monotonic()
        for number in range(2 * otlp.MOST_WAITING):
            telling.show(job_state())
            telling.tell("new", slow_rank(number))
        assert time.monotonic() - began < PATIENCE_S / 2 and not telling.finish(0.1)


@pytest.mark.parametrize(("endpoint", "found"), [
    ("http://host:4318", "http://host:4318/v1/logs"), ("https://host/otlp/", "https://host/otlp/v1/logs"),
    ("https://host/a?key=b", "https://host/a/v1/logs?key=b")])
def test_urls(endpoint, found):
    assert signal_url(endpoint, "logs") == found


def test_names_follow_the_conventions():
    for one in families(job_state()):
        assert one.name.startswith("distprof.") and one.name == one.name.lower() and one.text.endswith(".")
        assert one.unit in SUFFIXES and not one.name.endswith(("_total", "_seconds", "_bytes"))


@pytest.mark.job
def test_a_watched_job_is_told_to_a_collector(tmp_path):
    run = make_run(tmp_path / "run")
    with collector() as taken:
        watching = WatchProcess(order(run, otlp=taken.url), PROGRAM)
        ranks = [MadeUpRank(run, rank) for rank in range(4)]
        for rank in ranks:
            rank.steps(200)
            rank.steps(100, forward_ms=23 if rank is ranks[1] else 5)
        watching.finish()
        assert [one.event_name for one in taken.events()] == ["distprof.finding.new"]
        assert taken.series()["distprof.steps", '{"rank": "1"}'] == 300
        assert taken.series()["distprof.running", "{}"] == 0
