"""`--on-finding`: a command or a webhook that is called for each finding: when it is new, explained, and over.

Alerts are delivered by a few threads: one that hangs delays neither the watcher nor, while a thread is free, the next
alert.
"""

from __future__ import annotations

import base64
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
from http.client import HTTPException
from urllib.parse import unquote, urlsplit

import msgspec

from distprof import __version__
from distprof.contract.watch_state import WatchFinding
from distprof.launch.watching.watcher_protocol import WEB

AT_ONCE = 8
"""Most commands or requests at the same time."""
MOST_WAITING = 1000
"""Most alerts that wait; further ones are dropped, as nobody would read them."""
COMMAND_S, REQUEST_S = 60.0, 5.0
"""Timeouts of a command, which is then killed, and of a request."""
PAUSES_S = (0.5, 1.5)
"""Pauses before a failed request is tried again."""
FINAL_ERRORS = range(400, 500)
"""HTTP status codes after which a request is not tried again, except for those in `COME_AGAIN`."""
COME_AGAIN = (408, 425, 429)


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an alert: JSON on the command's standard input, or in the body of a POST request."""

    event: str
    """new; explained, if a recording has since shown module and line; or ended."""
    run: str
    """The run directory."""
    run_id: str
    text: str
    """The finding as a sentence; chat services show this field of a webhook."""
    finding: WatchFinding


class Alerts:
    """Delivers alerts in the background.

    Args:
        target: A command, run by `sh`, or an http(s) URL.
        complain: Called with a line at the first failure of each kind, from any thread.
    """

    def __init__(self, target: str, complain: Callable[[str], object]) -> None:
        self._target, self._complain = target.strip(), complain
        self._waiting: queue.Queue[Alert | None] = queue.Queue(MOST_WAITING)
        self._complained, self._left = set[str](), 0
        self._changed = threading.Condition()
        self._running = set[subprocess.Popen[bytes]]()
        self._threads = 0

    def tell(self, alert: Alert) -> None:
        """Queues an alert. Returns at once."""
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
            except RuntimeError:  # no memory for a thread; the alert waits until another one is queued
                with self._changed:
                    self._threads -= 1

    def finish(self, patience_s: float) -> bool:
        """Waits until all alerts are delivered, at most this long, and kills commands that still run.

        Returns:
            False if some alerts were not delivered in time.
        """
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
            except Exception as error:  # noqa: BLE001 (the next alert must be delivered)
                why = f"{type(error).__name__}: {error}"
            with self._changed:
                self._left -= 1
                is_first = bool(why) and why not in self._complained
                self._complained.add(why)
                self._changed.notify_all()
            if is_first:
                self._complain(f"--on-finding failed: {why}")

    def _call(self, content: bytes) -> str:
        """Runs the command. Returns why it failed, or ''."""
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
        """Sends a POST request. Returns why it failed, or ''; with only the host, as the rest of the URL may be
        secret."""
        url, login = _apart(self._target)
        host, why = urlsplit(url).hostname, ""
        for pause_s in (*PAUSES_S, None):
            request = urllib.request.Request(url, content, method="POST", headers={
                "Content-Type": "application/json", "User-Agent": f"distprof/{__version__}", **login})
            try:
                with urllib.request.urlopen(request, timeout=REQUEST_S):
                    return ""
            except urllib.error.HTTPError as error:
                why = f"{host} answers {error.code}"
                if error.code in FINAL_ERRORS and error.code not in COME_AGAIN:
                    break
            except (OSError, HTTPException) as error:  # the second one: no valid URL, or no valid answer
                reason = getattr(error, "reason", error)
                why = f"{host}: {getattr(reason, 'strerror', None) or reason}"
            if pause_s is not None:
                time.sleep(pause_s)
        return why


def _apart(url: str) -> tuple[str, dict[str, str]]:
    """Returns a URL without `user:password@`, which urllib does not accept, and the header that says the same."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return (parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
            {"Authorization": f"Basic {base64.b64encode(login).decode()}"})


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a command with all processes that it started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
