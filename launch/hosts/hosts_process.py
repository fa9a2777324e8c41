"""The launcher's handle for the process that copies files between hosts; it never delays the job."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec

from distprof.ending import ended_by_signals
from distprof.errors import Ended, UsageError
from distprof.launch.hosts.protocol import End, FromHosts, Gathered, HostsOrder, Meet, ToHosts
from distprof.launch.hosts.rendezvous import Meetings
from distprof.launch.hosts.wire import Announcement, server_context
from distprof.launch.watching.watcher_protocol import OFF, address
from distprof.terminal import say

PROGRAM = ("import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
           "from distprof.launch.hosts.copy_process import main; main()")
"""Imports from the same path as this process; `-m` would also import from the working directory."""
HOSTS, CERTIFICATE, KEY = "DISTPROF_HOSTS", "DISTPROF_HOSTS_CERT", "DISTPROF_HOSTS_KEY"
"""Environment variables with the defaults of the flags."""
STARTED_S = 10.0
"""How long to wait for the first host to listen, in seconds."""
PATIENCE_S = 360.0
"""How long to wait for the process after the end of the job, in seconds; it has shorter limits of its own."""


class HostsProcess:
    """A process that sends the files of this host to the first one, or receives them there.

    Args:
        order: What to copy.
        program: Python code that the process runs; tests pass their own.
    """

    def __init__(self, order: HostsOrder, program: str = PROGRAM) -> None:
        self._announced: queue.Queue[Announcement] = queue.Queue()
        self._gathered: Gathered | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, name="distprof hosts", daemon=True)
        self._writing = threading.Lock()
        self._meetings = Meetings(self._meet)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DISTPROF_")}
        try:  # in its own session: signals that a terminal sends to the job do not end it
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, "\n".join(sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=environ, start_new_session=True,
                stderr=None if os.environ.get("DISTPROF_DEBUG") else subprocess.DEVNULL)
            self._write(order)
            self._reader.start()
        except (OSError, RuntimeError) as error:  # cannot start a process or a thread
            say(f"cannot copy files between hosts: {getattr(error, 'strerror', None) or error}")
            self._kill()

    def meeting(self) -> AbstractContextManager[None]:
        """Returns a context manager for the time when torchrun runs: it tells the process about each rendezvous."""
        return self._meetings.taking_part()

    def finish(self, exit_code: int, failed: Mapping[str, int]) -> Gathered:
        """Lets the process copy the remaining files and waits for it. Never raises.

        Args:
            exit_code: Exit code of the job on this host.
            failed: Fields of run.json about the rank that failed first on this host.
        """
        with suppress(Exception):
            self._ask(End(exit_code=exit_code, failed=dict(failed)))
        self._kill()
        return self._gathered or Gathered(role="kept")

    def _ask(self, end: End) -> None:
        if self._process is None:
            return
        try:
            with ended_by_signals():
                self._write(ToHosts(end=end))
                self._reader.join(PATIENCE_S)
        except Ended:
            say("the process that receives files from other hosts has ended")

    def _meet(self, meet: Meet) -> Announcement | None:
        """Forwards a rendezvous to the process; returns the announcement for other hosts on the first host, else
        None."""
        self._write(ToHosts(meet=meet))
        if meet.announcement is not None:
            return None
        try:
            return self._announced.get(timeout=STARTED_S)
        except queue.Empty:
            return None

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        with suppress(Exception):
            for line in self._process.stdout:
                message = msgspec.json.decode(line, type=FromHosts)
                if message.say:
                    say(message.say)
                if message.serving is not None:
                    self._announced.put(message.serving)
                if message.gathered is not None:
                    self._gathered = message.gathered

    def _write(self, order: HostsOrder | ToHosts) -> None:
        with self._writing, suppress(OSError):  # the process has ended
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(msgspec.json.encode(order) + b"\n")
                self._process.stdin.flush()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def asked(hosts: str | None, certificate: str | None, key: str | None) -> HostsOrder | None:
    """Checks the flags before the job begins and returns them as an order without a directory; None: copy nothing.

    Raises:
        UsageError: A flag is wrong.
    """
    hosts = hosts or os.environ.get(HOSTS) or "on"
    certificate, key = certificate or os.environ.get(CERTIFICATE), key or os.environ.get(KEY)
    if hosts == OFF:
        return None
    listen = ("", 0) if hosts == "on" else address(hosts, "--hosts")
    if key is not None and certificate is None:
        raise UsageError("--hosts-key without --hosts-cert", hint="--hosts-cert FILE --hosts-key FILE")
    if certificate is not None:
        server_context(Path(certificate), Path(key) if key is not None else None)
    absolute = [os.fspath(Path(name).absolute()) if name is not None else None for name in (certificate, key)]
    return HostsOrder(directory="", uploaded=False, listen=listen, certificate=absolute[0], key=absolute[1])
