"""What a program costs: a command line comes in, its time and its memory go out.

Time and memory are measured in runs of their own where memory must be sampled, so that sampling costs no time.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.01
"""Between two looks at the memory of a process tree."""
MAX_TAIL = 300
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
    others_cores: float
    """Cores that everything else on the machine kept busy meanwhile: above 0, the wall time is too long."""
    printed: str


def timed(command: list[str]) -> Cost:
    """Runs a program undisturbed.

    Raises:
        Failed: It did not end with 0.
    """
    with tempfile.TemporaryFile() as output:
        begin, busy_s = time.perf_counter(), _busy_s()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s, busy_s = time.perf_counter() - begin, _busy_s() - busy_s
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    if process.returncode:
        raise Failed(f"exit code {process.returncode}: ...{printed.strip()[-MAX_TAIL:]}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(wall_s=wall_s, cpu_s=cpu_s, max_rss_bytes=usage.ru_maxrss * 1024,
                others_cores=max(busy_s - cpu_s, 0) / wall_s, printed=printed)


def _busy_s() -> float:
    """Of all cores since the machine started: not idle, not waiting for a disk."""
    _, user, nice, system, _, _, irq, softirq, steal, *_ = Path("/proc/stat").read_text().split(maxsplit=9)
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / os.sysconf("SC_CLK_TCK")


def peak_pss_bytes(command: list[str]) -> int:
    """Runs a program and gives the largest sum of PSS that its process tree was seen to have.

    PSS counts a page that processes share once in all. A peak shorter than `SAMPLE_S` may be missed.

    Raises:
        Failed: It did not end with 0.
    """
    peak = 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, sum(map(_pss_bytes, _tree(process.pid))))
        time.sleep(SAMPLE_S)
    if process.returncode:
        raise Failed(f"exit code {process.returncode} in the run that measures memory")
    return peak


def _tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, _text(task).split())
    return found


def _pss_bytes(pid: int) -> int:
    for line in _text(Path(f"/proc/{pid}/smaps_rollup")).splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0    # it has ended


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
