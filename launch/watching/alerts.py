"""`--on-finding`: a command or a webhook that hears of each finding, when it is new and when it ends.

Each is told in a thread of its own, a few at a time: one that hangs holds up neither the watcher nor, until all places
are taken, the next one.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from distprof import __version__
from distprof.contract.watch_state import WatchFinding
from distprof.launch.watching.watcher_protocol import WEB

AT_ONCE = 8
"""Commands or requests that run side by side."""
MOST_WAITING = 1000
"""Beyond, news are dropped: nobody reads them any more."""
COMMAND_S, REQUEST_S = 60.0, 5.0
"""A command that takes longer is killed."""
PAUSES_S = (0.5, 1.5)
"""Before a request is tried again."""
FINAL_ERRORS = range(400, 500)
"""Answers of a server that will not change, except for those that ask to come again."""
COME_AGAIN = (408, 425, 429)


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What is told: JSON on standard input, or in the body of a POST."""

    event: str
    """new; explained, where a recording told module and line since; or ended."""
    run: str
    """The run directory."""
    run_id: str
    text: str
    """A sentence, which chats show."""
    finding: WatchFinding


class Alerts:
    """Tells somebody.

    Args:
        target: A command, run by `sh`, or an http(s) URL.
        complain: Called with a line on the first failure of each kind, from any thread.
    """

    def __init__(self, target: str, complain: Callable[[str], object]) -> None:
        self._target, self._complain = target.strip(), complain
        self._waiting: queue.Queue[Alert | None] = queue.Queue(MOST_WAITING)
        self._complained, self._left = set[str](), 0
        self._changed = threading.Condition()
        self._running = set[subprocess.Popen[bytes]]()
        self._threads = 0

    def tell(self, alert: Alert) -> None:
        """Returns at once."""
        with self._changed:
            if self._left >= MOST_WAITING:
                return
            self._left += 1
            starts = self._threads < min(self._left, AT_ONCE)
            self._threads += starts
        self._waiting.put_nowait(alert)
        if starts:
            try:
                threading.Thread(target=self._work, name="distprof alerts", daemon=True).start()
            except RuntimeError:  # no memory for one; the alert waits for the next try
                with self._changed:
                    self._threads -= 1

    def finish(self, patience_s: float) -> bool:
        """Waits until all were told, for a while, then ends what still runs; False where some were not told."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self._left, patience_s)
        for process in list(self._running):
            _end(process)
        return done

    def _work(self) -> None:
        while (alert := self._waiting.get()) is not None:
            why = ""
            try:
                content = msgspec.json.encode(alert)
                why = self._post(content) if self._target.lower().startswith(WEB) else self._call(content)
            except Exception as error:  # noqa: BLE001 (whatever it is, the next alert is told)
                why = f"{type(error).__name__}: {error}"
            with self._changed:
                self._left -= 1
                is_first = bool(why) and why not in self._complained
                self._complained.add(why)
                self._changed.notify_all()
            if is_first:
                self._complain(f"--on-finding failed: {why}")

    def _call(self, content: bytes) -> str:
        """Runs the command; why that failed, or ''."""
        with subprocess.Popen([shutil.which("sh") or "/bin/sh", "-c", self._target], stdin=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as process:
            self._running.add(process)
            try:
                process.communicate(content, COMMAND_S)
            except subprocess.TimeoutExpired:
                _end(process)
                return f"the command took more than {COMMAND_S:.0f} s"
            finally:
                self._running.discard(process)
        return f"exit code {process.returncode}" if process.returncode else ""

    def _post(self, content: bytes) -> str:
        """Sends it; why that failed, or ''. Only the host is named: the rest of the URL may be a secret."""
        host = urlsplit(self._target).hostname
        why = ""
        for pause_s in (*PAUSES_S, None):
            request = urllib.request.Request(self._target, content, method="POST", headers={
                "Content-Type": "application/json", "User-Agent": f"distprof/{__version__}"})
            try:
                with urllib.request.urlopen(request, timeout=REQUEST_S):
                    return ""
            except urllib.error.HTTPError as error:
                why = f"{host} answers {error.code}"
                if error.code in FINAL_ERRORS and error.code not in COME_AGAIN:
                    break
            except OSError as error:
                reason = getattr(error, "reason", error)
                why = f"{host}: {getattr(reason, 'strerror', None) or reason}"
            if pause_s is not None:
                time.sleep(pause_s)
        return why


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command with all that it started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
