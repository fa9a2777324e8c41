"""Why: what machines say, kept in files of each host, and joined with what was noticed, while the job runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from distprof.contract.conditions import HOSTS, PATTERN, encoded
from distprof.contract.watch_state import WatchFinding, WatchState
from distprof.launch.watching.machine import EVERY_S, MachineReader, MachineSample
from distprof.launch.watching.readings.processes import RankPids
from distprof.merge.watch.conditions import explained
from distprof.merge.watch.links import LinkSearch
from distprof.merge.watch.machines import Conditions

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
            self.problem = f"readings of this machine are no longer stored: {error}"


def folder_of(run: Path, stem: str) -> Path:
    """Where a host keeps what it said.

    Args:
        run: The run directory.
        stem: Host and boot id, as `summaries.host_file.file_stem` makes it.
    """
    return run / HOSTS / stem


SOON_S, LATER_S = 5.0, 60.0
"""Between two explanations of a finding: while it is new, and afterwards."""
NEW_S, OLD_S = 120.0, 1200.0
"""Since its onset: an old one keeps what it has, for what was before it is forgotten."""


class Reasons:
    """Reads this machine, hears of others through the run directory, and explains findings."""

    def __init__(self, run: Path, host: str, stem: str, pids: RankPids,
                 roots: Callable[[], set[int]] | None = None) -> None:
        """Finds out what this machine says.

        Args:
            run: The run directory.
            host: The name of this host, as ranks have it.
            stem: Host and boot id, as `summaries.host_file.file_stem` makes it.
            pids: Gives the process of each rank of this host.
            roots: Gives processes whose children are of the job, too, such as its launcher.

        Raises:
            OSError: The folder of this host cannot be made.
        """
        self._run, self._host, self._stem = run, host, stem
        self._conditions, self._told = Conditions(), SimpleQueue[MachineSample]()
        self._watch = MachineWatch(MachineReader(pids, roots), ConditionsFile(folder_of(run, stem), host),
                                   self._told.put)
        self._links = LinkSearch()
        self._due_s: dict[str, float] = {}

    def start(self) -> None:
        """Begins to read."""
        self._watch.start()

    def stop(self) -> None:
        """Ends it, and writes down what waits."""
        self._watch.stop()

    def add_links(self, state: WatchState) -> None:
        """Adds pairs of hosts between which data moves slowly."""
        self._links.add(state, self._conditions)

    @property
    def notes(self) -> list[str]:
        """What is not kept, and why."""
        return [self._watch.problem] if self._watch.problem is not None else []

    def explain(self, findings: Iterable[WatchFinding], rank_host: Mapping[int, str],
                rank_device: Mapping[int, int] | None = None) -> dict[str, list[str]]:
        """What goes along with each finding that goes on and is due, by its id; others keep what they have.

        Args:
            findings: As of now.
            rank_host: The host of each rank.
            rank_device: The number of each rank's GPU on its host; what the driver says where it is not given.
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
        while not self._told.empty():
            one = self._told.get()
            self._conditions.add(self._host, os.cpu_count() or 1, one.time_ns, one.values, one.others)
        self._conditions.look(self._run, but=[self._stem])
