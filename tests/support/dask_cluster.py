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

    def add_worker(self, *words: object, number: int = 1, comes_back: bool = False, before: Sequence[object] = (),
                   **environ: str) -> None:
        """Workers of one thread each, once the scheduler knows them.

        Args:
            words: For the command line of each.
            number: How many.
            comes_back: Whether a process watches each, which starts it again and ends it where it takes too much
                memory; without one there are fewer Pythons to start.
            before: In front of the command.
            environ: Variables.
        """
        logs = []
        for _ in range(number):
            logs.append(self._folder / f"worker{next(self._numbers)}.log")
            self._workers.append(self._start(logs[-1], [
                "distributed.cli.dask_worker", self.address, "--nthreads", "1", "--no-dashboard", "--local-directory",
                self._folder, *(() if comes_back else ("--no-nanny",)), *words], before, **environ))
        wait_for(lambda: all(b" Registered to:" in log.read_bytes() for log in logs))

    def _start(self, log: Path, words: Sequence[object], before: Sequence[object] = (), **environ: str) -> (
            subprocess.Popen[bytes]):
        with log.open("ab") as written:
            return forked.popen([*map(str, before), sys.executable, "-m", *map(str, words)], stdout=written,
                                stderr=written, start_new_session=True, env=clean_environ() | QUIET | environ)

    def processes(self) -> list[int]:
        """The processes that do the work now, of workers that come back."""
        return [child for watch in self._workers for child in _children(watch.pid)
                if b"spawn_main" in _line(child)]

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


def apart_from(folder: Path) -> tuple[object, ...]:
    """In front of a command that is to see nothing of what is in a folder."""
    folder.mkdir(exist_ok=True)
    apart = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
             f'mount -t tmpfs none "{folder}" && exec "$@"', "--")
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make mount namespaces")
    return apart


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
