"""Readings of processes: those of ranks, and others that use the processors of the host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from distprof.contract.conditions import named
from distprof.launch.watching.readings.rates import Rates, Values, pairs, put

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""Unit of the times in /proc/PID/stat."""
KERNEL = 2
"""Process id of kthreadd, whose children are the threads of the kernel."""
MOST_NAMES = 3
"""Most process names that are kept of a moment."""
LEAST_USE = 0.05
"""Processors that processes of one name must use for it to be kept."""
RankPids = Callable[[], Mapping[int, int]]
"""Returns the process id of each rank on this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    pid: int
    parent: int
    name: str
    used_s: float


class Others:
    """Processes of the host outside of the job: neither launcher nor rank, nor started by one of these."""

    def __init__(self, roots: Callable[[], set[int]]) -> None:
        """Reads nothing yet.

        Args:
            roots: Returns the processes that belong to the job with all their descendants.
        """
        self._roots, self._rates = roots, Rates()
        self.names = ""
        """Names of those that use most processor time, joined by `, `; without arguments, which may be secret."""
        self.of_job: set[int] = set()
        """Process ids of the job at the last look."""
        self.num_looks = 0
        self._every: dict[int, _Process] = {}
        self._children: dict[int, list[int]] = {}

    def used_s(self, pid: int) -> float:
        """Returns the processor time that a process and its descendants had used at the last look, in s."""
        return sum(self._every[one].used_s for one in _below(self._children, {pid}) if one in self._every)

    def read(self, into: Values) -> None:
        """Reads the processor time of other processes."""
        self._every = every = {one.pid: one for one in _processes()}
        self._children = {}
        for one in every.values():
            self._children.setdefault(one.parent, []).append(one.pid)
        self.num_looks += 1
        self.of_job = _below(self._children, self._roots())
        use: dict[str, float] = {}
        for one in every.values():
            if one.pid not in self.of_job and KERNEL not in (one.pid, one.parent):
                rate = self._rates.per_second(f"{one.pid} {one.name}", one.used_s) or 0.0
                use[one.name] = use.get(one.name, 0.0) + rate
        self._rates.forget([f"{one.pid} {one.name}" for one in every.values()])
        into["others"] = sum(use.values()) / (os.cpu_count() or 1)
        most = sorted(use, key=lambda name: -use[name])[:MOST_NAMES]
        self.names = ", ".join(name for name in most if use[name] >= LEAST_USE)


def _processes() -> Iterator[_Process]:
    for pid in psutil.pids():
        try:
            text = (PROC / str(pid) / "stat").read_bytes().decode(errors="replace")
        except OSError:  # the process ended
            continue
        name, words = text[text.find("(") + 1:text.rfind(")")], text[text.rfind(")") + 1:].split()
        yield _Process(pid=pid, parent=int(words[1]), name=name, used_s=(int(words[11]) + int(words[12])) * TICK_S)


def _below(children: Mapping[int, list[int]], roots: set[int]) -> set[int]:
    """Returns the roots and all of their descendants."""
    found, waiting = set(roots), list(roots)
    while waiting:
        fresh = [pid for pid in children.get(waiting.pop(), []) if pid not in found]
        found.update(fresh)
        waiting += fresh
    return found


@dataclass(slots=True)
class Ranks:
    """On which processors ranks may run, and what keeps them from running; to be read right after `others`."""

    pids: RankPids
    others: Others
    looks: int = 0
    """Looks of `others` at the last reading."""
    rates: Rates = field(default_factory=Rates)
    quotas: dict[int, list[Path]] = field(default_factory=dict)

    def read(self, into: Values) -> None:
        """Reads affinity, waiting and quota of each rank; ranks that ended are left out."""
        pids, processors = self.pids(), os.cpu_count() or 1
        allowed = {rank: cpus for rank, pid in pids.items() if (cpus := _affinity(pid))}
        is_fresh, self.looks = self.others.num_looks != self.looks, self.others.num_looks
        used = _used_s() if is_fresh and any(len(cpus) < processors for cpus in allowed.values()) else []
        for rank, cpus in allowed.items():
            try:
                self._rank(into, rank, pids[rank], cpus, used)
            except (OSError, psutil.Error):
                continue

    def _rank(self, into: Values, rank: int, pid: int, cpus: set[int], used: list[float]) -> None:
        into[named("rank_processors", rank)] = len(cpus)
        if used:
            own = self.rates.per_second(f"{pid} own", self.others.used_s(pid))
            every = self.rates.per_second(f"{pid} {sorted(cpus)}", sum(used[cpu] for cpu in cpus if cpu < len(used)))
            if own is not None and every is not None:
                into[named("rank_others", rank)] = min(max(every - own, 0.0) / len(cpus), 1.0)
        words = (PROC / str(pid) / "schedstat").read_text().split()
        waited = self.rates.per_second(f"{pid} waited", int(words[1]))
        put(into, named("rank_waits", rank), None if waited is None else min(waited / 1e9, 1.0))
        put(into, named("rank_stopped", rank), self._stopped(pid))

    def _stopped(self, pid: int) -> float | None:
        """Returns the share of quota periods in which a rank was throttled, the largest of all its control groups."""
        shares = []
        for path in self.quotas.setdefault(pid, _quotas(pid)):
            found = pairs(path)
            periods = self.rates.grown(f"{pid} {path} periods", found.get("nr_periods", 0))
            stopped = self.rates.grown(f"{pid} {path} stopped", found.get("nr_throttled", 0))
            if periods is not None and stopped is not None:
                shares.append(min(stopped / periods, 1.0) if periods else 0.0)
        return max(shares) if shares else None


def _affinity(pid: int) -> set[int]:
    try:
        return os.sched_getaffinity(pid)
    except OSError:  # the process ended
        return set()


def _used_s() -> list[float]:
    return [sum(one[:3]) + sum(one[5:8]) for one in psutil.cpu_times(percpu=True)]


def _quotas(pid: int) -> list[Path]:
    """Returns the `cpu.stat` files of the control groups of a process that have a quota counter (cgroup v1 and v2)."""
    found = []
    for line in (PROC / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CGROUPS / "cpu" if controllers else CGROUPS
        folder = root / path.lstrip("/")
        while folder.is_relative_to(root):
            stat = folder / "cpu.stat"
            if stat.exists() and "nr_throttled" in pairs(stat):
                found.append(stat)
            folder = folder.parent
    return found
