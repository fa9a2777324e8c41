"""Reads and stores machine conditions on each host while the job runs, and explains findings by them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from distprof.contract.conditions import HOSTS, NUMBERS, PATTERN, encoded, in_order, number_of
from distprof.contract.watch_state import WatchFinding, WatchState
from distprof.launch.watching.machine import EVERY_S, MachineReader, MachineSample
from distprof.launch.watching.readings.processes import RankPids
from distprof.merge.watch.conditions import explained
from distprof.merge.watch.links import LinkSearch
from distprof.merge.watch.machines import MOST_MOMENTS, Conditions

MOMENTS = 20
"""Moments per frame."""
MOST_BYTES = 24 << 20
"""Largest total size of the files of a host: more than a day."""
PARTS = 8
"""Number of files that share this size; the oldest is removed when a new one begins."""


class ConditionsFile:
    """The condition files of a host. New moments are appended, and the oldest file is removed beyond a limit."""

    def __init__(self, folder: Path, host: str, most_bytes: int = MOST_BYTES) -> None:
        """Continues with a new file after those that exist.

        Args:
            folder: Folder of the host; it is created.
            host: Host name.
            most_bytes: Largest total size of all files.
        """
        self._folder, self._host, self._most_bytes = folder, host, most_bytes
        self._waiting: list[MachineSample] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._number = next((number_of(path) + 1 for path in reversed(in_order(folder.glob(PATTERN)))), 0)

    def add(self, sample: MachineSample) -> None:
        """Adds a moment. Every `MOMENTS` of them are written together.

        Raises:
            OSError: The file cannot be written; these moments are lost.
        """
        self._waiting.append(sample)
        if len(self._waiting) >= MOMENTS:
            self.write()

    def write(self) -> None:
        """Writes the moments that wait.

        Raises:
            OSError: The file cannot be written; these moments are lost.
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
        return self._folder / PATTERN.replace("[0-9]" * 3, f"{number % NUMBERS:03d}")


class MachineWatch:
    """Reads this machine once a second, in a thread of its own, so that a driver that hangs delays nothing else."""

    def __init__(self, reader: MachineReader, file: ConditionsFile, told: Callable[[MachineSample], None]) -> None:
        """Does not start the thread.

        Args:
            reader: Makes the readings.
            file: Stores them.
            told: Called with each moment, in that thread.
        """
        self._reader, self._file, self._told = reader, file, told
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="conditions", daemon=True)
        self.problem: str | None = None
        """Why moments are no longer stored, although reading continues; None while they are."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, patience_s: float = 2.0) -> None:
        """Ends the thread and writes the moments that wait; a reading that does not return in time is abandoned."""
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
            self.problem = f"readings of this machine are no longer stored: {error}"


def folder_of(run: Path, stem: str) -> Path:
    """Returns the folder of the condition files of a host.

    Args:
        run: The run directory.
        stem: Host and boot id, as `summaries.host_file.file_stem` makes it.
    """
    return run / HOSTS / stem


SOON_S, LATER_S = 5.0, 60.0
"""Time between two searches for the reasons of a finding: while it is new, and afterwards."""
NEW_S, OLD_S = 120.0, 1200.0
"""Time since its onset up to which a finding is new, and after which its reasons are no longer updated, because the
readings from before it are dropped."""


class Reasons:
    """Reads this machine, gets the readings of other hosts from the run directory, and explains findings by them."""

    def __init__(self, run: Path, host: str, stem: str, pids: RankPids,
                 roots: Callable[[], set[int]] | None = None) -> None:
        """Finds out what can be read on this machine.

        Args:
            run: The run directory.
            host: Name of this host, as its ranks record it.
            stem: Host and boot id, as `summaries.host_file.file_stem` makes it.
            pids: Returns the process id of each rank on this host.
            roots: Returns further processes, such as the launcher, that belong to the job with all their descendants.

        Raises:
            OSError: The folder of this host cannot be made.
        """
        self._run, self._host, self._stem = run, host, stem
        self._conditions, self._told = Conditions(), deque[MachineSample](maxlen=MOST_MOMENTS)
        self._watch = MachineWatch(MachineReader(pids, roots), ConditionsFile(folder_of(run, stem), host),
                                   self._told.append)
        self._links = LinkSearch()
        self._due_s: dict[str, float] = {}

    def start(self) -> None:
        """Starts reading."""
        self._watch.start()

    def stop(self) -> None:
        """Stops reading, and writes the moments that wait."""
        self._watch.stop()

    def add_links(self, state: WatchState) -> None:
        """Adds slow links between hosts to the findings of a state."""
        self._links.add(state, self._conditions)

    @property
    def notes(self) -> list[str]:
        """Why readings are not stored; empty if they are."""
        return [self._watch.problem] if self._watch.problem is not None else []

    def explain(self, findings: Iterable[WatchFinding], rank_host: Mapping[int, str],
                rank_device: Mapping[int, int] | None = None) -> dict[str, list[str]]:
        """Returns the reasons of each finding that goes on and is due, by its id. Other findings keep what they have.

        Args:
            findings: The current findings.
            rank_host: Host name of each rank.
            rank_device: Number of each rank's GPU on its host; None: as the driver says.
        """
        now_s, told = time.monotonic(), {}
        due = [one for one in findings if one.until_step is None and self._due_s.get(one.id, 0) <= now_s]
        self._take()
        for one in due:
            age_s = (time.time_ns() - one.onset_ns) / 1e9
            self._due_s[one.id] = now_s + (SOON_S if age_s < NEW_S else LATER_S) if age_s < OLD_S else float("inf")
            told[one.id] = explained(one, self._conditions, rank_host, rank_device or None)
        return told

    def _take(self) -> None:
        while self._told:
            one = self._told.popleft()
            self._conditions.add(self._host, os.cpu_count() or 1, one.time_ns, one.values, one.others)
        self._conditions.look(self._run, but=[self._stem])
