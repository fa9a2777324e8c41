"""How much memory this process holds and held, as the kernel and torch tell."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

from distprof.contract.rank_json import PeakMemory

STATUS = Path("/proc/self/status")


def status_bytes(key: Literal["VmRSS", "VmHWM", "VmSize"]) -> int | None:
    """A line of /proc/self/status in bytes: proc_pid_status(5). None where the kernel has no such file.

    ru_maxrss of getrusage would not do: it survives exec, so it may be that of the parent program.
    """
    with suppress(OSError, StopIteration, ValueError):
        lines = STATUS.read_text().splitlines()
        return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1]) << 10
    return None


def peak_memory() -> PeakMemory:
    """The most that this process has held until now."""
    torch = sys.modules.get("torch")
    on_cuda = torch is not None and torch.cuda.is_initialized()
    return PeakMemory(host_bytes=status_bytes("VmHWM"),
                      device_bytes=torch.cuda.max_memory_allocated() if torch is not None and on_cuda else None)
