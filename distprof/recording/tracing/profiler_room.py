"""Limits the memory of a profiler session, by estimating what it will need at its end.

torch.profiler keeps everything until its session ends, without a limit, and then converts it into something about ten
times as large. It does not report its size, so everything that the process holds beyond its earlier peak is assumed to
be the profiler's: a step needs about as much memory as the steps before it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from distprof.own import text_of
from distprof.system import limit_of, resource, status_bytes

VARIABLE = "DISTPROF_PROFILER_MEMORY"
GROWTH = 12
"""Factor by which events grow while a session ends and is written: in torch 2.13, from 275 bytes each to 3 kB."""
MOST_BYTES = 8 << 30
LEAST_BYTES = 64 << 20
SHARE = 0.5
"""Fraction of the memory that is free when the pass begins; the ranks of a host share it."""
EVERY = 64
"""Number of module calls between two looks at the memory, which take a few microseconds."""
CGROUPS = (("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
           ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"))
UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}


class ProfilerRoom:
    """Checks the memory of this process during a session."""

    def __init__(self) -> None:
        self.most_bytes = 0
        """Maximum memory that the profiler may need at the end of its session."""
        self._before_bytes = 0
        self._calls = 0
        self._thread: int | None = None

    def start(self) -> None:
        """Begins to attribute additional memory to the profiler."""
        self._thread = threading.get_ident()
        self.most_bytes = _given() or max(int(min(MOST_BYTES, SHARE * _free_bytes() / _local_ranks())), LEAST_BYTES)
        self._before_bytes = status_bytes("VmHWM") or 0

    @property
    def taken_bytes(self) -> int:
        """Memory that the profiler would need if its session ended at this moment."""
        return GROWTH * max(_resident_bytes() - self._before_bytes, 0)

    def is_full(self) -> bool:
        """True if the session has to end now. Only the thread that began it can end it, so it is False on others."""
        return threading.get_ident() == self._thread and self.taken_bytes >= self.most_bytes

    def is_full_now_and_then(self) -> bool:
        """Like `is_full` for frequent calls: looks at the memory every `EVERY` calls."""
        self._calls += 1
        return self._calls % EVERY == 0 and self.is_full()


def _given() -> int | None:
    """Returns the limit that the user set, such as 500MB; None if there is none or it is not valid."""
    text = os.environ.get(VARIABLE, "").strip().lower()
    number = text.rstrip("kmgb ")
    with suppress(ValueError, KeyError, OverflowError):
        given = int(float(number) * UNITS[text[len(number):].strip()])
        return given if given > 0 else None
    return None


def _local_ranks() -> int:
    with suppress(ValueError):
        return max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
    return 1


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):  # not Linux
        return 0


def _free_bytes() -> int:
    """Returns how much more memory this process can get."""
    found = [MOST_BYTES << 10]
    with suppress(OSError, StopIteration, ValueError):
        lines = text_of(Path("/proc/meminfo")).splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) << 10)
    for limit, used in CGROUPS:
        with suppress(OSError, ValueError):
            found.append(int(text_of(Path(limit))) - int(text_of(Path(used))))
    most = limit_of("AS")
    if most is not None:
        found.append(most - (status_bytes("VmSize") or 0))
    return max(min(found), 0)
