"""Readings of the hosts of a job, kept as they arrive. A moment is a time at which a host was read, once a second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

import numpy as np

from distprof.arrays import Array, Integers
from distprof.contract.conditions import HOSTS, PATTERN, ReadMoments, in_order, moments, reading_of

MOST_MOMENTS = 1800
"""Newest moments of a host that are always kept in memory; with twice as many, the older half is dropped."""
FEWEST_MOMENTS = 256
"""Moments for which memory is allocated at first."""
HOLDS_MOMENTS = 15
"""A value is held for this many moments without a reading, because what is costly to read is read less often."""


class HostConditions:
    """Readings of a host, as columns that grow with each moment."""

    def __init__(self, host: str, num_processors: int) -> None:
        self.host, self.num_processors = host, num_processors
        self.count = 0
        self.others: list[str] = []
        """For each moment, names of processes that are not part of the job, joined by `, `."""
        self._times = np.zeros(FEWEST_MOMENTS, np.int64)
        self._columns: dict[str, Array] = {}

    def add(self, time_ns: int, values: Mapping[str, float], others: str) -> None:
        """Appends a moment; one that is not later than the last one is ignored."""
        if self.count and time_ns <= self._times[self.count - 1]:
            return
        if self.count == 2 * MOST_MOMENTS:
            self._forget()
        elif self.count == len(self._times):
            self._grow()
        self._times[self.count] = time_ns
        for name, value in values.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = np.full(len(self._times), np.nan, np.float32)
            column[self.count] = value
        self.others.append(others)
        self.count += 1

    def _grow(self) -> None:
        more = min(len(self._times), 2 * MOST_MOMENTS - len(self._times))
        self._times = np.concatenate((self._times, np.zeros(more, np.int64)))
        self._columns = {name: np.concatenate((column, np.full(more, np.nan, np.float32)))
                         for name, column in self._columns.items()}

    def _forget(self) -> None:
        for column in (self._times, *self._columns.values()):
            column[:MOST_MOMENTS] = column[MOST_MOMENTS:2 * MOST_MOMENTS].copy()
        # some are of addresses that ranks no longer talk to
        self._columns = {name: column for name, column in self._columns.items()
                         if not np.isnan(column[:MOST_MOMENTS]).all()}
        for column in self._columns.values():
            column[MOST_MOMENTS:] = np.nan
        self.others, self.count = self.others[MOST_MOMENTS:], MOST_MOMENTS

    def names(self) -> list[str]:
        """Returns the names of its columns, sorted."""
        return sorted(self._columns)

    def times(self) -> Integers:
        """Returns the times of its moments, in ns since the epoch; shape (moments,)."""
        return self._times[:self.count]

    def column(self, name: str) -> Array:
        """Returns a column at these moments; NaN where it was not read for `HOLDS_MOMENTS`, or never. Shape
        (moments,)."""
        found = self._columns.get(name)
        return _held(found[:self.count].astype(float)) if found is not None else np.full(self.count, np.nan)


def _held(values: Array) -> Array:
    known = np.flatnonzero(~np.isnan(values))
    if not len(known) or len(known) == len(values):
        return values
    last = np.searchsorted(known, np.arange(len(values)), side="right") - 1
    place = known[np.maximum(last, 0)]
    far = (last < 0) | (np.arange(len(values)) - place > HOLDS_MOMENTS)
    return np.where(far, np.nan, values[place])


class Conditions:
    """Readings of all hosts of a job, while it runs and afterwards."""

    def __init__(self) -> None:
        self.hosts: dict[str, HostConditions] = {}
        """By host name."""
        self._read: dict[Path, int] = {}
        """Bytes read so far, by file."""

    def add(self, host: str, num_processors: int, time_ns: int, values: Mapping[str, float], others: str = "") -> None:
        """Appends a moment of a host.

        Args:
            host: Host name.
            num_processors: Number of processors of the host.
            time_ns: In ns since the epoch. A moment that is not later than the host's last one is ignored.
            values: Values by column name.
            others: Names of processes that are not part of the job, joined by `, `.
        """
        one = self.hosts.get(host)
        if one is None:
            one = self.hosts[host] = HostConditions(host, num_processors)
        one.add(time_ns, values, others)

    def look(self, run: Path, but: Iterable[str] = ()) -> None:
        """Reads what hosts have written to their files since the last call.

        Args:
            run: The run directory.
            but: Names of host folders to skip, because `add` gets their moments.
        """
        without = set(but)
        every = groupby(sorted((run / HOSTS).glob(f"*/{PATTERN}")), lambda path: path.parent.name)
        paths = [path for host, files in every if host not in without for path in in_order(files)]
        self._read = {path: self._read.get(path, 0) for path in paths}  # the number of a removed file is used again
        for path in paths:
            for found in self._new_of(path):
                self._take(found)

    def _new_of(self, path: Path) -> list[ReadMoments]:
        begin, found, end = self._read[path], [], 0
        try:
            with path.open("rb") as file:
                file.seek(begin)
                content = file.read()
        except OSError:  # the oldest files may be removed
            return []
        for end, one in moments(content):  # noqa: B007 (the last one is needed)
            found.append(one)
        self._read[path] = begin + end
        return found

    def _take(self, found: ReadMoments) -> None:
        for place, time_ns in enumerate(found.times_ns):
            values = {name: value for name, column in found.columns.items()
                      if (value := column[place]) is not None}
            self.add(found.host, found.num_processors, time_ns, values, found.others[place])

    def devices(self) -> dict[int, int]:
        """Returns the GPU number of each rank whose process is known to the GPU's driver."""
        found: dict[int, int] = {}
        for one in self.hosts.values():
            for name in one.names():
                kind, which = reading_of(name)
                if kind == "rank_gpu" and not np.isnan(value := one.column(name)[-1]):
                    found[int(which)] = int(value)
        return found
