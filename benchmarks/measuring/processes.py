"""What a program costs: a command line comes in, its time and its memory go out."""

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
"""Between two looks at the memory of a process."""
MAX_TAIL = 3000
"""Characters of its last words that a program which failed is quoted with."""


class Failed(Exception):
    """A program ended with another code than 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One run of a program."""

    wall_s: float
    cpu_s: float
    """Of its children too, user and system."""
    max_rss_bytes: int
    """Of the largest single process of the tree, as the kernel kept it; exact where there is one process."""
    sampled_bytes: int
    """The largest that was seen, of a run that was looked at; a peak shorter than `SAMPLE_S` may be missed."""
    others_cores: float
    """Cores that everything else on the machine kept busy meanwhile: above 0, the wall time is too long."""
    printed: str


def timed(command: Sequence[str], look: Callable[[int], int] | None = None) -> Cost:
    """Runs a program.

    Args:
        command: Its command line.
        look: Gives the bytes of a process by its number; it takes time from the program. None: nobody looks.

    Raises:
        Failed: It did not end with 0.
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
    """Of all cores since the machine started: not idle, not waiting for a disk."""
    _, user, nice, system, _, _, irq, softirq, steal, *_ = Path("/proc/stat").read_text().split(maxsplit=9)
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / os.sysconf("SC_CLK_TCK")


def pss_bytes(pid: int) -> int:
    """PSS of a process and all its descendants, which counts a page that they share once in all."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, _text(task).split())
    return sum(_field(f"/proc/{one}/smaps_rollup", "Pss") for one in found)


def own_bytes(pid: int) -> int:
    """Memory of a process that is in no file."""
    return _field(f"/proc/{pid}/status", "RssAnon")


def peak_bytes(pid: int) -> int:
    """The largest resident set of a process that runs, until now."""
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
    """Calls a function in a process of its own: what a large process starts is as large, as the kernel sees it.

    Raises:
        Failed: It did not return.
    """
    process = get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise Failed(f"{work} ended with {process.exitcode}")
