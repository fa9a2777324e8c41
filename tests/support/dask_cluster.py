"""A cluster of dask: a scheduler and workers as processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Self

import pytest

from support import forked
from support.jobs import PATIENCE_S, ROOT, clean_environ
from support.missing import missing

if missing("distributed"):  # for all who import this
    pytest.skip(missing("distributed"), allow_module_level=True)
PATIENT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": f"{PATIENCE_S}s"}
"""For a client whose workers come back: on a busy machine that takes longer than the 30 s of dask."""
QUIET = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "30s", "PYTHONPATH": str(ROOT)}
IDLE = {"DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s", "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "1s",
        "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
        "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "fork"}
"""For processes of a cluster that waits: they look at themselves less often, and nothing is imported once more."""
APART = """
import ctypes, os, runpy, sys

folder, sys.argv[:] = sys.argv[1], sys.argv[2:]
libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
assert libc.unshare(0x10020000) == 0, ctypes.get_errno()  # of users and of mounts
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0, ctypes.get_errno()  # of this process alone from here on
assert libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, None) == 0, ctypes.get_errno()
if sys.argv:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""A Python that sees nothing of what is in a folder, and runs a module."""


class DaskCluster:
    """Starts a scheduler; leaving it as a context ends all processes.

    Args:
        folder: For its files; made here.
        environ: Variables of the scheduler.
    """

    def __init__(self, folder: Path, **environ: str) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._port, self._environ = folder, 0, environ
        self._workers: list[subprocess.Popen[bytes]] = []
        self._numbers = count()
        self.address = ""
        self.start_scheduler()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start_scheduler(self) -> None:
        """At the same address, if there was one before."""
        file = self._folder / "scheduler.json"
        file.unlink(missing_ok=True)
        self._scheduler = self._start(self._folder / "scheduler.log", [
            "distributed.cli.dask_scheduler", "--no-dashboard", "--host", "127.0.0.1", "--port", str(self._port),
            "--scheduler-file", file], **self._environ)
        wait_for(file.exists)
        wait_for(lambda: file.read_text().endswith("}"))
        self.address = json.loads(file.read_text())["address"]
        self._port = int(self.address.rpartition(":")[2])

    def add_worker(self, *words: object, number: int = 1, comes_back: bool = False, apart: Path | None = None,
                   **environ: str) -> None:
        """Workers of one thread each, once the scheduler knows them.

        Args:
            words: For the command line of each.
            number: How many.
            comes_back: Whether a process watches each, which starts it again and ends it where it takes too much
                memory; without one there are fewer Pythons to start.
            apart: A folder that each sees empty (`apart_from`).
            environ: Variables.
        """
        logs = []
        for _ in range(number):
            logs.append(self._folder / f"worker{next(self._numbers)}.log")
            self._workers.append(self._start(logs[-1], [
                "distributed.cli.dask_worker", self.address, "--nthreads", "1", "--no-dashboard", "--local-directory",
                self._folder, *(() if comes_back else ("--no-nanny",)), *words], apart, **environ))
        wait_for(lambda: all(b" Registered to:" in log.read_bytes() for log in logs))

    def _start(self, log: Path, words: Sequence[object], apart: Path | None = None, **environ: str) -> (
            subprocess.Popen[bytes]):
        begin = ("-m",) if apart is None else ("-c", APART, apart)
        with log.open("ab") as written:
            return forked.popen([sys.executable, *map(str, (*begin, *words))], stdout=written, stderr=written,
                                start_new_session=True, env=clean_environ() | QUIET | IDLE | environ)

    def processes(self) -> list[int]:
        """The processes that do the work now, of workers that come back."""
        return [child for watch in self._workers for child in _children(watch.pid)
                if b"resource_tracker" not in _line(child)]

    @property
    def scheduler_pid(self) -> int:
        return self._scheduler.pid

    def kill_scheduler(self) -> None:
        """SIGKILL."""
        _kill(self._scheduler)

    def kill_workers(self) -> None:
        """SIGKILL, and nobody starts them again."""
        while self._workers:
            _kill(self._workers.pop())

    def end(self) -> None:
        """Ends all processes."""
        self.kill_workers()
        self.kill_scheduler()


def apart_from(folder: Path) -> Path:
    """A folder of which a worker can be told to see nothing of what is in it, for `add_worker`."""
    folder.mkdir(exist_ok=True)
    if forked.run([sys.executable, "-c", APART, folder], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this user may not make mount namespaces")
    return folder


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With those that it has started; Python's own that removes what they leave in /dev/shm ends by itself."""
    if process.poll() is None:
        for one in (process.pid, *_children(process.pid)):
            if b"resource_tracker" not in _line(one):
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
        process.wait()


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()]
    except OSError:
        return []


def _line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for(what: Callable[[], object]) -> None:
    """Until it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)
