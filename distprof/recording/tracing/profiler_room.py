"""How much memory the profiler may take, and whether it has taken that.

torch.profiler keeps what it records until its session ends, without a bound, and then turns it into something ten
times as large. Its own size cannot be asked for. What the process holds beyond the most that it held before is taken
for it: a step needs about as much as the steps before it.
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
"""How many times larger events get while a session ends and is written: in torch 2.13 275 bytes each become 3 kB."""
MOST_BYTES = 8 << 30
LEAST_BYTES = 64 << 20
SHARE = 0.5
"""Of the memory that is free where the pass begins; ranks of a host share it."""
EVERY = 64
"""Module calls between two looks, which take a few microseconds."""
CGROUPS = (("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
           ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"))
UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}


class ProfilerRoom:
    """Looks at the memory of this process while a session is on."""

    def __init__(self) -> None:
        self.most_bytes = 0
        """What the profiler may take up to the end of its session."""
        self._before_bytes = 0
        self._calls = 0
        self._thread: int | None = None

    def start(self) -> None:
        """From now on, what comes is taken for the profiler's."""
        self._thread = threading.get_ident()
        self.most_bytes = _given() or max(int(min(MOST_BYTES, SHARE * _free_bytes() / _local_ranks())), LEAST_BYTES)
        self._before_bytes = status_bytes("VmHWM") or 0

    @property
    def taken_bytes(self) -> int:
        """What the profiler will need at the end of its session, if that is now."""
        return GROWTH * max(_resident_bytes() - self._before_bytes, 0)

    def is_full(self) -> bool:
        """True where the session has to end now. Only the thread that began it can do that."""
        return threading.get_ident() == self._thread and self.taken_bytes >= self.most_bytes

    def is_full_now_and_then(self) -> bool:
        """The same for what is called often: it looks each `EVERY` times."""
        self._calls += 1
        return self._calls % EVERY == 0 and self.is_full()


def _given() -> int | None:
    """What the user allows, like 500MB; None where that is not said, or makes no sense."""
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
    except (OSError, IndexError, ValueError):  # no Linux
        return 0


def _free_bytes() -> int:
    """What this process may still get."""
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
