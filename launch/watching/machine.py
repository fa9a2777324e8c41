"""Reads the state of the machine once a second, with at most 1 % of one CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from distprof.launch.watching.readings import links, processors, traffic
from distprof.launch.watching.readings.gpus import amd_readings, nvidia_readings
from distprof.launch.watching.readings.processes import Others, RankPids, Ranks
from distprof.launch.watching.readings.rates import Values

SHARE = 0.008
"""Share of one processor that readings may use; the rest of 1 % is for writing them."""
EVERY_S = 1.0
"""Shortest time between two looks, and between two readings of the same thing."""
KEPT = 0.7
"""Weight of the previous cost in the moving average of the cost of a reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSample:
    """What was read at one moment."""

    time_ns: int
    """In ns since the epoch, by the clock of this host."""
    values: Mapping[str, float]
    """Values by the columns of `contract/conditions.py`; without those that are unknown or were not due."""
    others: str
    """Names of the processes outside of the job that use most processor time; '' for none."""


@dataclass(slots=True, kw_only=True)
class _Reading:
    read: Callable[[Values], None]
    cost_s: float = 0.0
    """Processor time of one reading, as a moving average."""
    every_s: float = EVERY_S
    due_s: float = 0.0
    """When it is made next, by the monotonic clock."""


class MachineReader:
    """Reads this machine. Expensive readings are made less often; one that fails is not made again."""

    def __init__(self, pids: RankPids, roots: Callable[[], set[int]] | None = None) -> None:
        """Finds out what can be read.

        Args:
            pids: Returns the process id of each rank on this host.
            roots: Returns further processes, such as the launcher, that belong to the job with all their descendants.
        """
        others = Others(lambda: {os.getpid(), *pids().values(), *(roots() if roots is not None else ())})
        self._others = others
        gpus = nvidia_readings(pids, lambda: others.of_job) or amd_readings(pids)
        every = [others.read, Ranks(pids, others).read, *processors.readings(), *traffic.readings(),
                 *links.readings(pids), *gpus]
        self._readings = [_Reading(read=read) for read in every]

    @property
    def num_readings(self) -> int:
        """Number of readings that are still made."""
        return len(self._readings)

    def read(self) -> MachineSample:
        """Makes all readings that are due. Rates of counters are known from the second look on."""
        values: Values = {}
        now_s = time.monotonic()
        for reading in list(self._readings):
            # up to half a look early is on time, because looks are not exactly 1 s apart
            if reading.due_s <= now_s + EVERY_S / 2:
                self._one(reading, values)
                reading.due_s = now_s + reading.every_s
        _share_out(self._readings)
        return MachineSample(time_ns=time.time_ns(), values=values, others=self._others.names)

    def _one(self, reading: _Reading, values: Values) -> None:
        found: Values = {}
        began_s = time.thread_time()
        try:
            reading.read(found)
        except Exception:  # noqa: BLE001 (this kernel or driver does not support it)
            self._readings.remove(reading)
            return
        values.update(found)
        cost_s = time.thread_time() - began_s
        reading.cost_s = KEPT * reading.cost_s + (1 - KEPT) * cost_s if reading.cost_s else cost_s


def _share_out(readings: list[_Reading]) -> None:
    """Sets how often each reading is made, so that all together use `SHARE` of a processor.

    The processor time per second is the sum of cost / interval. For a given sum, intervals proportional to the square
    root of the cost minimise the mean interval (Lagrange multipliers).
    """
    low, high = 0.0, 1e6
    for _ in range(40):
        stretch = (low + high) / 2
        spent = sum(one.cost_s / max(EVERY_S, stretch * one.cost_s ** 0.5) for one in readings)
        low, high = (stretch, high) if spent > SHARE else (low, stretch)
    for one in readings:
        one.every_s = max(EVERY_S, high * one.cost_s ** 0.5)
