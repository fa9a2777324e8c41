"""`--otlp`: sends the series of a job as metrics, and its findings as log events, to an OpenTelemetry collector.

A background thread sends, so that a collector that hangs delays nothing else. The SDK's exporters read their usual
environment variables, such as OTEL_EXPORTER_OTLP_HEADERS.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from distprof import __version__
from distprof.contract.watch_series import Family, families
from distprof.contract.watch_state import WatchFinding, WatchState

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

EVERY_S = 10.0
"""Time between two exports of metrics; events are sent at once."""
EXPORT_S = 4.0
"""Timeout of an export, including retries."""
MOST_WAITING = 1000
"""Most events that wait; further ones are dropped, as the collector takes none."""
EVENT = "distprof.finding"
"""Prefix of the names of events and of their attributes."""
Told = tuple[str, WatchFinding, int]
"""The event (new, explained or ended), the finding, and when that was known, in ns since the epoch."""


class Collector:
    """Sends states and findings to a collector.

    Args:
        endpoint: URL of the collector, without `/v1/metrics`.
        run: The run directory.
        run_id: Id of the run.
        complain: Called with a line at the first failure of each kind, from the thread that sends.
    """

    def __init__(self, endpoint: str, run: Path, run_id: str, complain: Callable[[str], object]) -> None:
        self._endpoint, self._complain, self._complained = endpoint, complain, set[str]()
        self._about = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or "distprof",
                       "service.version": __version__, "service.instance.id": run_id, "distprof.run": str(run)}
        self._changed = threading.Condition()
        self._state: WatchState | None = None
        self._events = list[Told]()
        self._is_over, self._began_ns = False, time.time_ns()
        self._thread = threading.Thread(target=self._work, name="distprof otlp", daemon=True)
        self._thread.start()

    def show(self, state: WatchState) -> None:
        """Sets the state that the next export of metrics sends. Returns at once."""
        with self._changed:
            self._state = state

    def tell(self, event: str, finding: WatchFinding) -> None:
        """Queues an event about a finding (new, explained or ended). Returns at once."""
        with self._changed:
            if len(self._events) < MOST_WAITING:
                self._events.append((event, msgspec.structs.replace(finding), time.time_ns()))
                self._changed.notify_all()

    def finish(self, patience_s: float) -> bool:
        """Sends the last state and waits for that at most this long. Returns False if it was not sent by then."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            sender = _Sender(self._endpoint, self._about, self._began_ns)
        except Exception as error:  # noqa: BLE001 (the SDK is missing or of another version)
            self._fail(f"{type(error).__name__}: {error}")
            return
        due_s, is_over = time.monotonic(), False
        while not is_over:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._events, max(due_s - time.monotonic(), 0.0))
                events, self._events, state, is_over = self._events, [], self._state, self._is_over
            if events:
                self._fail(sender.log(events))
            if state is not None and (is_over or time.monotonic() >= due_s):
                self._fail(sender.measure(state))
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + (EVERY_S if state is not None else 1.0)

    def _fail(self, why: str) -> None:
        if why and why not in self._complained:
            self._complained.add(why)
            self._complain(f"--otlp: {why}")


class _Sender:
    """The SDK's exporters. Each method returns why it failed, or ''."""

    def __init__(self, endpoint: str, about: dict[str, str], began_ns: int) -> None:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._host, self._began_ns = urlsplit(endpoint).hostname, began_ns
        self._metrics = OTLPMetricExporter(endpoint=signal_url(endpoint, "metrics"), timeout=EXPORT_S)
        self._logs = OTLPLogExporter(endpoint=signal_url(endpoint, "logs"), timeout=EXPORT_S)
        self._resource, self._scope = Resource.create(about), InstrumentationScope("distprof", __version__)
        self._said = _LastWords()
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self._said)
        logger.propagate = False

    def measure(self, state: WatchState) -> str:
        """Sends all series of a state as metrics."""
        return self._outcome(lambda: self._metrics.export(self._data(state)), "metrics")

    def log(self, events: Sequence[Told]) -> str:
        """Sends findings as log events."""
        return self._outcome(lambda: self._logs.export([self._record(*one) for one in events]), "findings")

    def _outcome(self, export: Callable[[], Any], what: str) -> str:
        self._said.text = ""
        try:
            if export().name == "SUCCESS":
                return ""
        except Exception as error:  # noqa: BLE001 (whatever it is, the next export is tried)
            return f"{what} were not sent: {type(error).__name__}"
        code = re.search(r"\b[45]\d\d\b", self._said.text)
        return f"{self._host} {f'answers {code[0]}' if code else 'does not answer'}: {what} were not sent"

    def _data(self, state: WatchState) -> MetricsData:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics

        of = [_metric(one, self._began_ns, state.time_ns) for one in families(state) if one.points]
        return MetricsData([ResourceMetrics(self._resource, [ScopeMetrics(self._scope, of, "")], "")])

    def _record(self, event: str, finding: WatchFinding, time_ns: int) -> ReadableLogRecord:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.sdk._logs import ReadableLogRecord

        is_bad = event == "new" and finding.kind != "pauses"
        return ReadableLogRecord(
            LogRecord(timestamp=time_ns, observed_timestamp=time_ns, body=finding.text,
                      severity_text="WARN" if is_bad else "INFO",
                      severity_number=SeverityNumber.WARN if is_bad else SeverityNumber.INFO,
                      event_name=f"{EVENT}.{event}", attributes=dict(_attributes(finding))),
            self._resource, self._scope)


class _LastWords(logging.Handler):
    """The last message that the SDK logged."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the message."""
        self.text = record.getMessage()


def signal_url(endpoint: str, signal: str) -> str:
    """Returns the URL for a signal: `http://host:4318` -> `http://host:4318/v1/metrics`."""
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/v1/{signal}"))


def _metric(family: Family, began_ns: int, time_ns: int) -> Metric:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

    points = [NumberDataPoint(dict(zip(family.labels, key, strict=True)), began_ns, time_ns, value)
              for key, value in family.points]
    name = f"{family.name}.info" if family.kind == "info" else family.name
    data = Sum(points, AggregationTemporality.CUMULATIVE, True) if family.kind == "counter" else Gauge(points)
    return Metric(name, family.text, family.unit, data)


def _attributes(finding: WatchFinding) -> Iterator[tuple[str, Any]]:
    """Yields the known fields of a finding, except for its sentence, which is the body of the event."""
    for name, value in msgspec.to_builtins(finding).items():
        if name != "text" and value is not None and value != []:
            yield f"{EVENT}.{name}", value
