"""The launcher's handle of the watcher process: started with the job, asked at its end; it never delays the job."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec

from distprof.contract.watch_state import LogTo
from distprof.ending import ended_by_signals
from distprof.errors import Ended, UsageError
from distprof.launch.watching.watcher_protocol import (
    END,
    Message,
    WatchOrder,
    address,
    check_collector,
    check_target,
    every_s,
)
from distprof.terminal import quoted, say

PROGRAM = ("import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
           "from distprof.launch.watching.watcher import main; main()")
"""Code of the watcher process. It imports from the same paths as this process; `-m` would add the working
directory."""
PATIENCE_S = 30.0
"""Timeout of the last look, which reads all remaining data; a large job takes a few seconds."""


class WatchProcess:
    """A process that watches the steps of a job.

    Args:
        order: What to watch, and whom to tell.
        program: Code that the process runs.
    """

    def __init__(self, order: WatchOrder, program: str = PROGRAM) -> None:
        self._order = order
        self._end: Message | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        command = [sys.executable, "-c", program, "\n".join(sys.path)]
        environ = {name: value for name, value in os.environ.items()
                   if not name.startswith("DISTPROF_") or name == "DISTPROF_DEBUG"}
        environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
        try:  # in a session of its own, so that signals from the terminal do not end it
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, start_new_session=True,
                stderr=None if os.environ.get("DISTPROF_DEBUG") else subprocess.DEVNULL)
            self._write(msgspec.json.encode(order) + b"\n")
            self._reader = threading.Thread(target=self._read, name="distprof watch", daemon=True)
            self._reader.start()
        except (OSError, RuntimeError) as error:  # no process, or no thread
            say(f"cannot start the watch: {getattr(error, 'strerror', None) or error}")
            self._kill()

    def finish(self) -> list[str]:
        """Returns lines about the whole job; prints a message if the watcher ended early or crashed. Never raises."""
        if self._process is None:
            return []
        with suppress(Exception):
            self._ask()
        if self._end is None or self._end.kind != "end":
            why = f": {self._end.lines[0]}" if self._end is not None else self._how_it_ended()
            say(f"the watch ended before the job{why}. Next:",
                f"    distprof watch --once {quoted(self._order.directory)}")
            return []
        return self._end.lines

    def _ask(self) -> None:
        """Tells the watcher that the job is over, and waits for its last message."""
        assert self._process is not None and self._reader is not None
        try:
            with ended_by_signals():
                self._write(END)
                self._reader.join(PATIENCE_S)
        except Ended:
            self._end = Message(kind="end", lines=[])  # the user does not want to wait for it
        if self._reader.is_alive():
            self._process.kill()
            self._reader.join()
        self._process.wait()
        self._close()

    def _how_it_ended(self) -> str:
        assert self._process is not None
        code = self._process.returncode
        return "" if not code else f" (exit code {code})" if code > 0 else f" (signal {-code})"

    def _read(self) -> None:
        """Prints the watcher's messages until it ends."""
        assert self._process is not None and self._process.stdout is not None
        with suppress(Exception):
            for line in self._process.stdout:
                message = msgspec.json.decode(line, type=Message)
                if message.kind == "say":
                    say(*message.lines)
                else:
                    self._end = message

    def _write(self, content: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        with suppress(OSError):  # the watcher has ended
            self._process.stdin.write(content)
            self._process.stdin.flush()

    def _close(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what the watcher did not read is lost
                if pipe is not None:
                    pipe.close()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()
        self._process = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The flags of a job that concern its watch."""

    metrics: str | None
    on_finding: str | None
    otlp: str | None
    log_to: LogTo | None
    window_every_s: float | None

    def of(self, run: Path, run_id: str, *, is_alone: bool) -> WatchOrder:
        """Returns the order to the watcher for a run directory."""
        return WatchOrder(directory=os.fspath(run.absolute()), run_id=run_id, is_alone=is_alone, metrics=self.metrics,
                          on_finding=self.on_finding, otlp=self.otlp, log_to=self.log_to,
                          window_every_s=self.window_every_s)


def wanted(*, metrics: str | None = None, on_finding: str | None = None, otlp: str | None = None,
           log_to: LogTo | None = None, window_every: str | None = None, is_on: bool) -> Wanted | None:
    """Checks the flags before the job starts. Returns None if the job is not to be watched.

    Raises:
        UsageError: A flag is wrong, needs a package that is missing, or needs the watch, which is off.
    """
    flags = {"--metrics": metrics, "--on-finding": on_finding, "--otlp": otlp, "--log-to": log_to,
             "--window-every": window_every}
    given = [name for name, value in flags.items() if value is not None]
    if given and not is_on:
        raise UsageError(f"{given[0]} needs the watch", hint="leave out --watch off (DISTPROF_WATCH=off)")
    if metrics is not None:
        address(metrics, "--metrics")
        _expect("prometheus_client", "--metrics", "prometheus-client", "metrics")
    if on_finding is not None:
        check_target(on_finding)
    if otlp is not None:
        check_collector(otlp)
        _expect("opentelemetry.exporter.otlp.proto.http", "--otlp", "opentelemetry-exporter-otlp-proto-http", "otlp")
        _expect("opentelemetry.sdk.metrics", "--otlp", "opentelemetry-sdk", "otlp")
    if log_to is not None:
        _expect("tensorboard.summary" if log_to == "tensorboard" else log_to, f"--log-to {log_to}", log_to, log_to)
    window_every_s = every_s(window_every)
    return Wanted(metrics=metrics, on_finding=on_finding, otlp=otlp, log_to=log_to,
                  window_every_s=window_every_s) if is_on else None


def _expect(module: str, flag: str, package: str, extra: str) -> None:
    try:
        found = find_spec(module)
    except ImportError:  # a parent package is missing
        found = None
    if found is None or found.origin is None:  # a namespace package: the folder wandb/ that wandb leaves where jobs ran
        raise UsageError(f"{flag} needs the package {package}", hint=f"pip install 'distprof[{extra}]'")
