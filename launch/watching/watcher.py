"""The watcher: a process beside a job that reads what ranks append, and reports findings. It never imports torch.

Its standard input begins with an order and ends when the launcher does: `watcher_protocol.py`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from distprof.contract.watch_state import (
    AT_ONCE,
    OPEN_RUNS,
    WatchFinding,
    WatchState,
    certain_findings,
    logged_file,
    read_state,
    write_state,
)
from distprof.errors import DataError
from distprof.launch.watching.claim import Claim
from distprof.launch.watching.watcher_protocol import END, Message, WatchOrder, address

if TYPE_CHECKING:
    from distprof.launch.watching.alerts import Alerts
    from distprof.launch.watching.event_file import EventFile
    from distprof.launch.watching.explanations import Explanations
    from distprof.launch.watching.metrics import MetricsServer
    from distprof.launch.watching.otlp import Collector
    from distprof.launch.watching.watched_job import MakesEngine, WatchedJob

EVERY_S, LONGEST_S = 1.0, 5.0
"""Time from the start of one look to the next: normally, and at most if looks take long."""
WRITTEN_EVERY_S = 1.0
"""The state is written about this often even without a new look, which shows that the watcher is alive."""
SHARE = 0.05
"""Share of a processor that looks may use; beyond it, they become less frequent."""
LOW_PRIORITY = 10
"""Niceness. On a machine that is busy with the job, it leaves the watcher a tenth of a processor; 19 would leave too
little to be in time."""
MOST_SAID = 20
"""Most findings that are printed, during the job and in the last look."""
EXPLAINS_S = 6.0
"""Explanations are imported this long after ranks began to write, so that short jobs do without."""
PATIENCE_S = 5.0
"""Longest wait after the job for `--on-finding`, and again for `--otlp`."""


def main(engine: MakesEngine | None = None) -> None:
    """Watches a run directory as the order on standard input says, until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(LOW_PRIORITY)
    inbox = Inbox(0)
    try:
        order = inbox.order()
        watcher = Watcher(order, engine) if order is not None else None
        if watcher is not None:
            _watch(watcher, inbox)
    except Exception as error:  # noqa: BLE001 (the launcher prints it)
        if os.environ.get("DISTPROF_DEBUG"):
            sys.excepthook(type(error), error, error.__traceback__)
        tell("crash", f"{type(error).__name__}: {error}")
        os._exit(1)
    os._exit(0)  # threads of alerts may hang


def _watch(watcher: Watcher, inbox: Inbox) -> None:
    pause_s = 0.0
    while not inbox.has_ended(pause_s):
        began, used = time.monotonic(), time.process_time()
        watcher.look()
        used_s = time.process_time() - used
        until = began + min(max(EVERY_S, used_s / SHARE), LONGEST_S)
        while (pause_s := until - time.monotonic()) > WRITTEN_EVERY_S and not inbox.has_ended(WRITTEN_EVERY_S):
            watcher.write_again()
    if inbox.ended_well:
        tell("end", *watcher.finish())
    else:
        watcher.release()


class Inbox:
    """Standard input from the launcher."""

    def __init__(self, file: int) -> None:
        self._file, self._content, self._is_over = file, b"", False

    @property
    def ended_well(self) -> bool:
        """Whether the launcher wrote that the job is over."""
        return self._content.endswith(END)

    def order(self) -> WatchOrder | None:
        """Waits for the order; None if the launcher ended before it wrote one."""
        while b"\n" not in self._content:
            if self.has_ended(3600) and b"\n" not in self._content:
                return None
        return msgspec.json.decode(self._content.partition(b"\n")[0], type=WatchOrder)

    def has_ended(self, patience_s: float) -> bool:
        """Waits for input, at most this long. Returns whether the launcher has ended or the job is over."""
        if self._is_over or self.ended_well:
            return True
        ready, _, _ = select.select([self._file], [], [], max(patience_s, 0))
        if ready:
            read = os.read(self._file, 1 << 16)
            self._content, self._is_over = self._content + read, not read
        return self._is_over or self.ended_well


def tell(kind: str, *lines: str) -> None:
    """Sends the launcher a message; ignores that it is gone."""
    content = memoryview(msgspec.json.encode(msgspec.convert({"kind": kind, "lines": list(lines)}, Message)) + b"\n")
    with _TELLING, suppress(OSError):
        while content:
            content = content[os.write(1, content):]


_TELLING = threading.Lock()


class Watcher:
    """Does the work of the watcher process, look by look.

    Args:
        order: The launcher's order.
        engine: Used instead of `JobWatch`.
    """

    def __init__(self, order: WatchOrder, engine: MakesEngine | None = None) -> None:
        self._order, self._engine, self._run = order, engine, Path(order.directory)
        self._claim = Claim(self._run, is_alone=order.is_alone)
        self._server = _serve(order.metrics)
        self._alerts: Alerts | None = None
        if order.on_finding is not None:
            from distprof.launch.watching.alerts import Alerts

            self._alerts = Alerts(order.on_finding, lambda line: tell("say", line))
        self._collector: Collector | None = None
        if order.otlp is not None:
            from distprof.launch.watching.otlp import Collector

            self._collector = Collector(order.otlp, self._run, order.run_id, lambda line: tell("say", line))
        self._events: EventFile | None = None
        if order.log_to == "tensorboard":
            from distprof.launch.watching.event_file import EventFile

            self._events = EventFile(self._run, lambda line: tell("say", line))
        self._job: WatchedJob | None = None
        self._explanations: Explanations | None = None
        self._since_s: float | None = None
        """When a rank was first seen to have written something, by the monotonic clock."""
        self._seen_s: dict[str, float] = {}
        """When each finding was first seen, by id."""
        self._ended: dict[str, bool] = {}
        """By id, for the findings that were reported: whether their end was reported, too."""
        self._explained_ids = set[str]()
        """Ids of the findings whose module and line were reported."""
        self._num_said = 0
        self._state: WatchState | None = None
        self._news_s: float | None = None
        """When ranks last wrote something, by the monotonic clock."""

    def look(self, *, running: bool = True) -> None:
        """Reads what is new, searches for problems, writes the state, and reports new findings."""
        if self._explanations is None and running and any(self._run.glob("rank*/watch-*.bin")):
            self._explain()
        if self._explanations is not None:
            self._explanations.begin()
        if not self._claim.holds():
            self._job = None
            if self._server is not None or not running:  # at thousands of ranks it is large
                self._show(_last_state(self._run))
            return
        if self._job is None and not self._begin():
            return
        assert self._job is not None
        if self._job.look():
            self._news_s = time.monotonic()
        if not self._job.is_seen:
            return
        state = self._job.state(self._order.run_id, running=running)
        certain = self._explained(state, running=running)
        self._show(state)
        if self._collector is not None:
            self._collector.show(state)
        if self._events is not None:
            self._events.show(state, at_end=not running)
        self._write(state)
        for finding in state.findings:
            if finding.id in certain:
                self._tell(finding)

    def _explain(self) -> None:
        """Starts the explanations once ranks have written for `EXPLAINS_S`: their imports are large."""
        self._since_s = self._since_s or time.monotonic()
        if time.monotonic() - self._since_s < EXPLAINS_S:
            return
        from distprof.launch.watching.explanations import Explanations

        self._explanations = Explanations(self._run, self._order.window_every_s, self._news_s)

    def _explained(self, state: WatchState, *, running: bool) -> set[str]:
        """Adds explanations to the findings. Returns the ids of those that are certain enough to be reported."""
        certain = certain_findings(state.findings, self._seen_s, running=running)
        if self._explanations is not None:
            self._explanations.add(state, certain, running=running)
        return certain_findings(state.findings, self._seen_s, running=running)  # a hang may have been added

    def write_again(self) -> None:
        """Writes the state of the last look again, with the current time."""
        if self._job is not None and self._state is not None and self._claim.holds():
            self._state.time_ns = time.time_ns()
            self._write(self._state)

    def finish(self) -> list[str]:
        """Takes a last look, after all ranks have ended. Returns lines about the whole job."""
        self.look(running=False)
        if self._alerts is not None and not self._alerts.finish(PATIENCE_S):
            tell("say", "not all findings were delivered to --on-finding in time")
        if self._collector is not None and not self._collector.finish(PATIENCE_S):
            tell("say", "the last metrics were not delivered to --otlp in time")
        if self._order.is_alone and self._order.log_to in OPEN_RUNS and not self._is_logged():
            tell("say", f"--log-to {self._order.log_to}: nothing was logged, because no rank had an open run")
        self.release()
        from distprof.merge.text.watch import end_lines

        return end_lines(self._state)

    def _is_logged(self) -> bool:
        return self._state is None or logged_file(self._run, self._order.log_to).exists()

    def release(self) -> None:
        """Stops reading the machine, and lets the watcher of another host take over."""
        if self._explanations is not None:
            self._explanations.stop()
        self._claim.release()

    def _begin(self) -> bool:
        """Starts watching once a rank has written something, as the imports are large. Returns whether it has."""
        if not any(self._run.glob("rank*/watch-*.bin")):
            return False
        from distprof.launch.watching.watched_job import WatchedJob

        earlier = None if self._order.is_alone else _last_state(self._run)
        for finding in earlier.findings if earlier is not None else ():
            self._ended[finding.id] = finding.until_step is not None  # the previous watcher reported it
        self._job = WatchedJob(self._run, self._engine)
        return True

    def _write(self, state: WatchState) -> None:
        with suppress(OSError):  # a full disk, or the directory was removed: findings are still reported
            write_state(self._run, state)

    def _show(self, state: WatchState | None) -> None:
        self._state = state if state is not None else self._state
        if self._server is not None:
            self._server.state = self._state

    def _tell(self, finding: WatchFinding) -> None:
        if finding.kind == "pauses":  # every job has some; the lines at the end sum them up
            return
        is_new, has_ended = finding.id not in self._ended, finding.until_step is not None
        is_explained = finding.window is not None and finding.id not in self._explained_ids
        if is_explained:
            self._explained_ids.add(finding.id)
        if is_new or is_explained:
            self._num_said += 1
            if self._num_said <= MOST_SAID:
                tell("say", finding.text)
            elif self._num_said == MOST_SAID + 1:
                tell("say", "there are more findings; see distprof watch")
        if is_new:
            self._alert("new", finding)
        elif is_explained:
            self._alert("explained", finding)
        if has_ended and not self._ended.get(finding.id, False):
            self._alert("ended", finding)
            if finding.kind in AT_ONCE and not is_new and self._num_said <= MOST_SAID:
                tell("say", finding.text)  # users who saw that the job hangs wait for this
        self._ended[finding.id] = has_ended

    def _alert(self, event: Literal["new", "explained", "ended"], finding: WatchFinding) -> None:
        if self._collector is not None:
            self._collector.tell(event, finding)
        if self._events is not None:
            self._events.tell(event, finding)
        if self._alerts is None:
            return
        from distprof.launch.watching.alerts import Alert

        self._alerts.tell(Alert(event=event, run=self._order.directory, run_id=self._order.run_id, text=finding.text,
                                finding=finding))


def _serve(metrics: str | None) -> MetricsServer | None:
    """Starts the server of metrics; None without `--metrics`, or, with a message, if the port is taken."""
    if metrics is None:
        return None
    from distprof.launch.watching.metrics import MetricsServer

    host, port = address(metrics, "--metrics")
    try:
        return MetricsServer(host, port)
    except OSError as error:
        tell("say", f"no metrics: cannot listen on port {port}: {error.strerror}")
        return None


def _last_state(run: Path) -> WatchState | None:
    try:
        return read_state(run)
    except DataError:
        return None
