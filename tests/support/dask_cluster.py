"""A dask cluster: a scheduler and workers as processes of this machine."""

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

if missing("distributed"):  # skips all modules that import this one
    pytest.skip(missing("distributed"), allow_module_level=True)
PATIENT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": f"{PATIENCE_S}s"}
"""Variables for a client whose workers are restarted, which takes longer than dask's 30 s on a busy machine."""
QUIET = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "30s", "PYTHONPATH": str(ROOT)}
IDLE = {"DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s", "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "1s",
        "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
        "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "fork"}
"""Variables for processes of a cluster that is mostly idle: less self-monitoring, and no repeated imports."""
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
"""Program that hides the contents of a folder from itself, and runs a module."""


class DaskCluster:
    """Starts a scheduler; as a context manager, ends all processes at the end of the block.

    Args:
        folder: Folder for its files, which is created.
        environ: Environment variables of the scheduler.
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
        """Starts a scheduler, at the same address as an earlier one, if any."""
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
        """Starts workers with one thread each, and waits until the scheduler knows them.

        Args:
            words: Additional arguments of each worker.
            number: Number of workers.
            comes_back: Whether a nanny process restarts each worker, and kills it if it uses too much memory; without
                one, fewer processes have to start.
            apart: A folder that appears empty to the workers (`apart_from`).
            environ: Environment variables.
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
        """Returns the current worker processes of workers that are restarted."""
        return [child for watch in self._workers for child in _children(watch.pid)
                if b"resource_tracker" not in _line(child)]

    @property
    def scheduler_pid(self) -> int:
        return self._scheduler.pid

    def kill_scheduler(self) -> None:
        """Kills the scheduler with SIGKILL."""
        _kill(self._scheduler)

    def kill_workers(self) -> None:
        """Kills the workers with SIGKILL; they are not restarted."""
        while self._workers:
            _kill(self._workers.pop())

    def end(self) -> None:
        """Ends all processes."""
        self.kill_workers()
        self.kill_scheduler()


def apart_from(folder: Path) -> Path:
    """Creates a folder whose contents can be hidden from workers, see `add_worker`; skips the test if that fails."""
    folder.mkdir(exist_ok=True)
    if forked.run([sys.executable, "-c", APART, folder], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this user may not make mount namespaces")
    return folder


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and its children, except Python's resource tracker, which cleans up /dev/shm and ends itself."""
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
    """Waits until `what` returns true."""
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)
