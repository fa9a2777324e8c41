"""Readings of processors and memory: clocks, heat, load, pressure, swap."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil

from distprof.contract.conditions import named
from distprof.launch.watching.readings.rates import Rates, Values, numbers, pairs, put

CPUS = Path("/sys/devices/system/cpu")
NODES = Path("/sys/devices/system/node")
PRESSURE = Path("/proc/pressure")
MOST_CLOCKS = 8
"""Most processors whose clock is read: on some kernels, reading it interrupts the processor."""
WORK, REPEATS = 400, 9
"""Iterations of a loop that takes some 20 us, and how often it is timed for one reading."""
TOTAL = re.compile(r"some .*total=(\d+)")


def readings() -> list[Callable[[Values], None]]:
    """Returns the readings of processors and memory; each may fail by itself."""
    rates, clocks = Rates(), _clocks()
    throttles = [path for kind in ("core", "package")
                 for path in CPUS.glob(f"cpu*/thermal_throttle/{kind}_throttle_count")]
    return [_Clock(clocks).read, _speed, _Load(rates).read, _Busy(rates).read, _Memory(rates).read,
            *[_Pressure(rates, kind).read for kind in ("cpu", "memory", "io") if (PRESSURE / kind).exists()],
            *([_Heat(rates, throttles).read] if throttles else [])]


def _clocks() -> list[Path]:
    found = sorted(CPUS.glob("cpu[0-9]*/cpufreq"))
    return found[::max(len(found) // MOST_CLOCKS, 1)][:MOST_CLOCKS]


class _Clock:
    def __init__(self, clocks: list[Path]) -> None:
        self._clocks = clocks
        most = [int((path / "cpuinfo_max_freq").read_text()) for path in clocks] if clocks else []
        self._most_mhz = sum(most) / len(most) / 1000 if most else 0.0

    def read(self, into: Values) -> None:
        if not self._clocks:
            raise OSError("the kernel does not say how fast its processors run")
        now = [int((path / "scaling_cur_freq").read_text()) for path in self._clocks]
        into["cpu_mhz"], into["cpu_most_mhz"] = sum(now) / len(now) / 1000, self._most_mhz


def _speed(into: Values) -> None:
    """Times a fixed piece of work. On a virtual machine, nothing else shows a lower clock, or a core that is shared."""
    into["work_us"] = median(_work_us() for _ in range(REPEATS))


def _work_us() -> float:
    began_ns, total = time.thread_time_ns(), 0
    for number in range(WORK):
        total += number * number & 7
    return (time.thread_time_ns() - began_ns) / 1e3


class _Heat:
    def __init__(self, rates: Rates, counters: list[Path]) -> None:
        self._rates, self._counters = rates, counters

    def read(self, into: Values) -> None:
        total = sum(int(path.read_text()) for path in self._counters)
        put(into, "cpu_throttles", self._rates.per_second("throttles", total))


class _Load:
    """Length of the run queue: tasks that run or could run, without the one that counts them."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates

    def read(self, into: Values) -> None:
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
        into["runnable"] = max(running - 1, 0) / (os.cpu_count() or 1)


class _Busy:
    """Processor time that was used, in total and, if there are several NUMA nodes, by node."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        nodes = {path.name[4:]: numbers((path / "cpulist").read_text()) for path in sorted(NODES.glob("node[0-9]*"))}
        self._nodes = {name: cpus for name, cpus in nodes.items() if cpus} if len(nodes) > 1 else {}

    def read(self, into: Values) -> None:
        times = psutil.cpu_times(percpu=bool(self._nodes))
        every = times if isinstance(times, list) else [times]
        used = [sum(one[:3]) + sum(one[5:8]) for one in every]  # neither idle nor iowait
        put(into, "busy", self._share("busy", sum(used)))
        put(into, "steal", self._share("steal", sum(one.steal for one in every)))
        for name, cpus in self._nodes.items():
            spent = sum(used[cpu] for cpu in cpus if cpu < len(used))
            put(into, named("node_busy", name), self._share(name, spent, len(cpus)))

    def _share(self, name: str, total: float, of: int | None = None) -> float | None:
        rate = self._rates.per_second(f"time of {name}", total)
        return None if rate is None else min(rate / (of or os.cpu_count() or 1), 1.0)


class _Pressure:
    """Share of the time in which some task waited for a resource (pressure stall information)."""

    def __init__(self, rates: Rates, kind: str) -> None:
        self._rates, self._kind = rates, kind

    def read(self, into: Values) -> None:
        found = TOTAL.search((PRESSURE / self._kind).read_text())
        if found is None:
            raise OSError("no pressure")
        rate = self._rates.per_second(f"pressure {self._kind}", int(found[1]))
        put(into, f"psi_{self._kind}", None if rate is None else min(rate / 1e6, 1.0))


class _Memory:
    def __init__(self, rates: Rates) -> None:
        self._rates, self._page = rates, os.sysconf("SC_PAGE_SIZE")

    def read(self, into: Values) -> None:
        memory, moved = psutil.virtual_memory(), pairs(Path("/proc/vmstat"))
        into["memory_available"] = memory.available / max(memory.total, 1)
        pages = moved.get("pswpin", 0) + moved.get("pswpout", 0)
        put(into, "swap_bytes", self._rates.per_second("swap", pages * self._page))
