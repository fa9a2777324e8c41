"""Reads the state of the machine once a second, for at most 1 % of a CPU."""

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
"""Of a processor that readings may take; the rest of a hundredth is for writing them down."""
EVERY_S = 1.0
KEPT = 0.7
"""How much of a known cost stays when a new one is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSample:
    """One moment."""

    time_ns: int
    """Since the epoch, the clock of this host."""
    values: Mapping[str, float]
    """By the columns of `contract/conditions.py`; what is not known, or was not due, is not there."""
    others: str
    """Names of processes that are not of the job and use most processor time; '' for none."""


@dataclass(slots=True, kw_only=True)
class _Reading:
    read: Callable[[Values], None]
    cost_s: float = 0.0
    """Processor time of one look."""
    every_s: float = EVERY_S
    due_s: float = 0.0


class MachineReader:
    """Reads this machine. One that costs much is read less often; one that fails is not read again."""

    def __init__(self, pids: RankPids, roots: Callable[[], set[int]] | None = None) -> None:
        """Finds out what there is to read.

        Args:
            pids: Gives the process of each rank on this host.
            roots: Gives processes whose children are of the job as well, such as its launcher; those of ranks are.
        """
        others = Others(lambda: {os.getpid(), *pids().values(), *(roots() if roots is not None else ())})
        self._others = others
        gpus = nvidia_readings(pids, lambda: others.of_job) or amd_readings(pids)
        every = [others.read, Ranks(pids, others).read, *processors.readings(), *traffic.readings(),
                 *links.readings(pids), *gpus]
        self._readings = [_Reading(read=read) for read in every]

    @property
    def num_readings(self) -> int:
        """How many are still made."""
        return len(self._readings)

    def read(self) -> MachineSample:
        """Looks at all that is due. Counters are known from the second look on."""
        values: Values = {}
        now_s = time.monotonic()
        for reading in list(self._readings):
            # half a turn early is on time: turns are not exactly a second apart
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
        except Exception:  # noqa: BLE001 (this kernel or driver lacks it: it is left out for good)
            self._readings.remove(reading)
            return
        values.update(found)
        cost_s = time.thread_time() - began_s
        reading.cost_s = KEPT * reading.cost_s + (1 - KEPT) * cost_s if reading.cost_s else cost_s


def _share_out(readings: list[_Reading]) -> None:
    """Sets how often each is made, so that all together take their share.

    What is spent is the sum of cost / interval. For a given sum, intervals that grow with the square root of the cost
    make the mean wait for news smallest (Lagrange).
    """
    low, high = 0.0, 1e6
    for _ in range(40):
        stretch = (low + high) / 2
        spent = sum(one.cost_s / max(EVERY_S, stretch * one.cost_s ** 0.5) for one in readings)
        low, high = (stretch, high) if spent > SHARE else (low, stretch)
    for one in readings:
        one.every_s = max(EVERY_S, high * one.cost_s ** 0.5)
