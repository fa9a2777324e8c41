"""What the machine says, kept: read in a thread of its own, appended to files of this host that stay small."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from distprof.contract.conditions import HOSTS, PATTERN, encoded
from distprof.launch.watching.machine import EVERY_S, MachineReader, MachineSample

MOMENTS = 20
"""In a frame, at most."""
MOST_BYTES = 24 << 20
"""Of all files of a host: a day and more."""
PARTS = 8
"""The oldest of so many files is removed at a time."""


class ConditionsFile:
    """The files of a host: appended to, the oldest removed beyond a limit."""

    def __init__(self, folder: Path, host: str, most_bytes: int = MOST_BYTES) -> None:
        """Goes on behind what is there.

        Args:
            folder: Of the host; it is created.
            host: Its name.
            most_bytes: Of all files together.
        """
        self._folder, self._host, self._most_bytes = folder, host, most_bytes
        self._waiting: list[MachineSample] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._number = max((int(path.stem[-3:]) for path in folder.glob(PATTERN)), default=-1) + 1

    def add(self, sample: MachineSample) -> None:
        """Keeps a moment; it is written with those before it.

        Raises:
            OSError: It cannot be written; these moments are lost.
        """
        self._waiting.append(sample)
        if len(self._waiting) >= MOMENTS:
            self.write()

    def write(self) -> None:
        """Writes what waits.

        Raises:
            OSError: As above.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        path = self._path(self._number)
        with path.open("ab") as file:
            file.write(encoded(self._host, os.cpu_count() or 1, [one.time_ns for one in waiting],
                               [one.values for one in waiting], [one.others for one in waiting]))
            size = file.tell()
        if size > self._most_bytes / PARTS:
            self._number += 1
            self._path(self._number - PARTS).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        # after 999 comes 000 again, which was removed long ago
        return self._folder / PATTERN.replace("[0-9]" * 3, f"{number % 1000:03d}")


class MachineWatch:
    """Reads this machine once a second, in a thread: a driver that does not answer holds up nobody else."""

    def __init__(self, reader: MachineReader, file: ConditionsFile, told: Callable[[MachineSample], None]) -> None:
        """Remembers what to do.

        Args:
            reader: What there is to read.
            file: Where it is kept.
            told: Is called with each moment, in that thread.
        """
        self._reader, self._file, self._told = reader, file, told
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="conditions", daemon=True)
        self.problem: str | None = None
        """Why nothing is kept any more; the reading goes on."""

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self, patience_s: float = 2.0) -> None:
        """Writes what waits, and ends; a reading that does not end in time is left alone."""
        self._over.set()
        self._thread.join(patience_s)
        if not self._thread.is_alive():
            self._keep(self._file.write)

    def _read(self) -> None:
        due_s = time.monotonic()
        while not self._over.is_set():
            sample = self._reader.read()
            self._keep(partial(self._file.add, sample))
            self._told(sample)
            due_s = max(due_s + EVERY_S, time.monotonic())
            self._over.wait(due_s - time.monotonic())

    def _keep(self, write: Callable[[], None]) -> None:
        try:
            if self.problem is None:
                write()
        except OSError as error:  # a full disk, or the run was removed
            self.problem = f"what the machine says is no longer kept: {error}"


def folder_of(run: Path, stem: str) -> Path:
    """Where a host keeps what it said.

    Args:
        run: The run directory.
        stem: Host and boot id, as `summaries.host_file.file_stem` makes it.
    """
    return run / HOSTS / stem
