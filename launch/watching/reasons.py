"""Why: what machines say, joined with what was noticed, while the job runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from queue import SimpleQueue

from distprof.contract.watch_state import WatchFinding, WatchState
from distprof.launch.watching.conditions_file import ConditionsFile, MachineWatch, folder_of
from distprof.launch.watching.machine import MachineReader, MachineSample
from distprof.launch.watching.readings.processes import RankPids
from distprof.merge.watch.conditions import explained
from distprof.merge.watch.links import LinkSearch
from distprof.merge.watch.machines import Conditions

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
