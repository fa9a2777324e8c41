"""Measures time and memory of a program, given its command line."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

SAMPLE_S = 0.01
"""Interval in seconds at which the memory of a process is sampled."""
MAX_TAIL = 3000
"""Maximum number of characters of the output of a failed program in an error."""


class Failed(Exception):
    """A program ended with an exit code other than 0, or a benchmark failed otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one run of a program."""

    wall_s: float
    cpu_s: float
    """User and system time, including its children."""
    max_rss_bytes: int
    """Peak resident set size of the largest process in its tree, from the kernel; exact if there is only one."""
    sampled_bytes: int
    """Largest sample of `look`, which may miss peaks shorter than `SAMPLE_S`; 0 without `look`."""
    others_cores: float
    """Mean number of cores that other programs kept busy: if it is above 0, the wall time is too long."""
    printed: str


def timed(command: Sequence[str], look: Callable[[int], int] | None = None) -> Cost:
    """Runs a program and measures it.

    Args:
        command: The command line.
        look: Returns the memory of a process, given its id, in bytes; it takes time from the program. None: no samples.

    Raises:
        Failed: The exit code is not 0.
    """
    with tempfile.TemporaryFile() as output:
        begin, busy_s = time.perf_counter(), _busy_s()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        ended = sampled = 0
        while not ended:
            if look is not None:
                sampled = max(sampled, look(process.pid))
                time.sleep(SAMPLE_S)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG if look else 0)
        wall_s, busy_s = time.perf_counter() - begin, _busy_s() - busy_s
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    if process.returncode:
        raise Failed(f"exit code {process.returncode}: ...{printed.strip()[-MAX_TAIL:]}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(wall_s=wall_s, cpu_s=cpu_s, max_rss_bytes=usage.ru_maxrss * 1024, sampled_bytes=sampled,
                others_cores=max(busy_s - cpu_s, 0) / wall_s, printed=printed)


def _busy_s() -> float:
    """Returns the busy time of all cores since boot: neither idle nor waiting for I/O."""
    _, user, nice, system, _, _, irq, softirq, steal, *_ = Path("/proc/stat").read_text().split(maxsplit=9)
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / os.sysconf("SC_CLK_TCK")


def pss_bytes(pid: int) -> int:
    """Returns the total PSS of a process and its descendants, which counts a page that they share only once."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, _text(task).split())
    return sum(_field(f"/proc/{one}/smaps_rollup", "Pss") for one in found)


def own_bytes(pid: int) -> int:
    """Returns the anonymous memory of a process, which belongs to no file."""
    return _field(f"/proc/{pid}/status", "RssAnon")


def peak_bytes(pid: int) -> int:
    """Returns the peak resident set size of a running process."""
    return _field(f"/proc/{pid}/status", "VmHWM")


def _field(path: str, name: str) -> int:
    for line in _text(Path(path)).splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0    # it has ended


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def apart(work: Callable[..., object], *arguments: object) -> None:
    """Calls a function in a separate process, so that this one stays small: the kernel counts its size for every
    program that it starts.

    Raises:
        Failed: The function did not return.
    """
    process = get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise Failed(f"{work} ended with {process.exitcode}")
