"""The activity of a process and its children (processor time, bytes read and written), and its native stack."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from distprof.launch.watching.readings.links import socket_bytes, sockets_of

LEAST_PROCESSORS = 0.15
"""Processors that a busy process uses at least: one that polls a lock or a store uses less."""
LEAST_RUNNABLE = 0.5
"""A process is also busy if a thread runs or waits for a processor for this share of the time: on a busy machine, it
gets little processor time."""
LEAST_BYTES = 64 << 10
"""Bytes per second that a busy process reads and writes at least, in files, pipes and sockets."""
PROC = Path("/proc")
PATIENCE_S = 10.0
"""Timeout of py-spy."""
SHOWN = 6
"""Innermost native calls that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Counters of a process and its descendants at a moment."""

    at_s: float
    """When, by the monotonic clock."""
    alive: bool
    stopped: bool
    """Whether the process is stopped by a signal or a debugger."""
    waits_for_disk: bool
    used_s: float
    """Processor time."""
    num_bytes: int
    """Bytes read and written."""
    runnable_s: Mapping[int, float] = field(default_factory=dict)
    """For each thread, the time in which it ran or waited for a processor."""

    def is_busy_since(self, before: Activity) -> bool:
        """Returns whether the process computed, read or wrote since then, or waits for a disk."""
        elapsed_s = max(self.at_s - before.at_s, 1e-3)
        # absolute, because the counters of a child are gone when it ends: then the sum is smaller
        used_s, num_bytes = abs(self.used_s - before.used_s), abs(self.num_bytes - before.num_bytes)
        return (self.waits_for_disk or used_s >= LEAST_PROCESSORS * elapsed_s or num_bytes >= LEAST_BYTES * elapsed_s
                or self._has_worked_since(before, elapsed_s))

    def _has_worked_since(self, before: Activity, elapsed_s: float) -> bool:
        return any(ran_s - before.runnable_s[thread] >= LEAST_RUNNABLE * elapsed_s
                   for thread, ran_s in self.runnable_s.items() if thread in before.runnable_s)


def activities(pids: Mapping[int, int]) -> dict[int, Activity]:
    """Reads the counters of the process of each rank, with those of its descendants; all are 0 if it has ended."""
    children, moved = _children(), socket_bytes()
    return {rank: _activity(pid, children, moved) for rank, pid in pids.items()}


def _activity(pid: int, children: Mapping[int, Sequence[int]], moved: Mapping[int, int]) -> Activity:
    at_s, status = time.monotonic(), _status(pid)
    every = [] if status == psutil.STATUS_DEAD else [pid, *_descendants(pid, children)]
    # what goes through send() and recv() is in no counter of the process
    num_moved = sum(moved.get(inode, 0) for one in every for inode in sockets_of(one))
    return Activity(
        at_s=at_s, alive=status not in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE),
        stopped=status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP),
        waits_for_disk=psutil.STATUS_DISK_SLEEP in (status, *map(_status, every[1:])),
        used_s=sum(map(_used_s, every)),
        num_bytes=sum(map(_num_bytes, every)) + num_moved,
        runnable_s={thread: ran_s for one in every for thread, ran_s in _threads(one)})


def _children() -> dict[int, list[int]]:
    """Returns the children of each process, from one look at all processes."""
    found = defaultdict[int, list[int]](list)
    for pid in psutil.pids():
        with suppress(OSError, ValueError, IndexError):  # it has ended
            found[int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])].append(pid)
    return found


def _descendants(pid: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    for child in children.get(pid, ()):
        yield child
        yield from _descendants(child, children)


def _status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return str(psutil.STATUS_DEAD)


def _used_s(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _threads(pid: int) -> Iterator[tuple[int, float]]:
    """Yields for each thread the time in which it ran or waited for a processor (/proc/PID/task/TID/schedstat)."""
    with suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            with suppress(OSError, ValueError):  # the thread ended, or the kernel counts nothing
                used_ns, waited_ns, _ = map(int, (thread / "schedstat").read_text().split())
                yield int(thread.name), (used_ns + waited_ns) / 1e9


def _num_bytes(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "io").read_text().splitlines()
    except OSError:  # the process ended, or is another user's
        return 0
    counters = {name: int(value) for name, _, value in (line.partition(":") for line in lines)}
    return counters.get("rchar", 0) + counters.get("wchar", 0)


def network_bytes() -> int:
    """Returns the bytes that this host has sent and received, including those to itself."""
    every = psutil.net_io_counters(nowrap=False)
    return int(every.bytes_sent + every.bytes_recv)


def native_calls(pid: int) -> list[str]:
    """Returns the innermost calls of the main thread, outermost first; none if py-spy is missing or not permitted."""
    program = shutil.which("py-spy")
    if program is None:
        return []
    try:
        done = subprocess.run([program, "dump", "--native", "--json", "--pid", str(pid)], timeout=PATIENCE_S,
                              check=True, stdin=subprocess.DEVNULL, capture_output=True)
        threads: list[dict[str, Any]] = msgspec.json.decode(done.stdout)
        main = next((one for one in threads if one.get("thread_name") == "MainThread"), threads[0])
        return [f"{frame['name']} ({frame['short_filename'] or frame['filename']})"
                for frame in main["frames"][:SHOWN]][::-1]
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError, LookupError, TypeError):
        return []
