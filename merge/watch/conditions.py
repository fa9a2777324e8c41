"""Finds the machine conditions (throttling, load, memory pressure, ...) that coincide with a finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from distprof.contract.conditions import reading_of
from distprof.contract.watch_state import WatchFinding
from distprof.merge.watch.causes import CAUSES, Cause, Found
from distprof.merge.watch.coincidence import Change, Series, chance, changed, least_long_s, times_by_itself
from distprof.merge.watch.machines import Conditions, HostConditions

MOST_CHANCE = 0.05
"""Largest probability of a chance coincidence, over all conditions together, with which a condition is named."""
MOST_SENTENCES = 3
"""Most conditions that are named for a finding."""
SHARED = 0.2
"""Largest share of other hosts, ranks or GPUs that may have the same change: if more have it, it explains nothing."""
HALF = 0.5
"""Others have the same change if theirs is at least this fraction of it, or large enough to slow them down."""
BACKGROUND_HOSTS = 16
"""Number of hosts on which it is counted how often conditions become bad without a finding."""
WITHOUT_REASON = ("memory_growth",)
"""Kinds of findings for which no condition is looked for: they already state what the machine would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One condition of one host, disk, network interface, rank or GPU."""

    cause: Cause
    host: HostConditions
    which: str

    def series(self) -> Series:
        return Series(seconds=self.host.times() / 1e9, values=self.cause.values(self.host, self.which),
                      bad=self.cause.bad, change=self.cause.change, events=self.cause.events)


def explained(finding: WatchFinding, conditions: Conditions, rank_host: Mapping[int, str],
              rank_device: Mapping[int, int] | None = None, until_ns: int | None = None) -> list[str]:
    """Names the machine conditions that go along with a finding.

    A condition is named if it became worse at the onset on a host, rank or GPU of the finding, lasts as long as the
    finding, did not become worse elsewhere, too, and is unlikely to coincide by chance.

    Args:
        finding: The finding.
        conditions: Conditions of all hosts for which they are known.
        rank_host: Host name of each rank.
        rank_device: Number of each rank's GPU on its host; None: as the conditions say.
        until_ns: When the finding ended, in ns since the epoch; None: it and the conditions must still go on.

    Returns:
        At most 3 sentences.
    """
    if finding.kind in WITHOUT_REASON or (finding.until_step is not None and until_ns is None):
        return []
    onset_s, until_s = finding.onset_ns / 1e9, until_ns / 1e9 if until_ns is not None else None
    every = list(_places(conditions, rank_host, conditions.devices() if rank_device is None else rank_device))
    here = [place for place, ranks, host in every if _concerns(finding, ranks, host, rank_host)]
    there = [place for place, ranks, host in every if not _concerns(finding, ranks, host, rank_host)]
    found = [(place, one) for place in here if (one := _found(place, onset_s, until_s)) is not None]
    if not found:
        return []
    least_s = least_long_s((until_s or max(place.host.times()[-1] / 1e9 for place, _ in found)) - onset_s)
    hosts = list(dict.fromkeys([*(place.host.host for place, _ in found), *conditions.hosts]))[:BACKGROUND_HOSTS]
    background = _Background([place for place, _, host in every if host in hosts], onset_s, least_s)
    # where every host's network is busy, that one of them sends even more explains nothing either
    shared = {_family(place) for place, one in found if _is_shared(one, place, there)}
    sure = [(place, one) for place, one in found if _family(place) not in shared
            and background.chance(place, one.change, len(here)) <= MOST_CHANCE]
    return [place.cause.words(one) for place, one in _first_of_family(sure)][:MOST_SENTENCES]


def _places(conditions: Conditions, rank_host: Mapping[int, str],
            rank_device: Mapping[int, int]) -> Iterator[tuple[_Place, set[int] | None, str]]:
    """Yields all conditions, each with the ranks that it concerns (None: all of the host) and its host name."""
    using: dict[tuple[str, int], set[int]] = {}
    for rank, device in rank_device.items():
        using.setdefault((rank_host.get(rank, ""), device), set()).add(rank)
    for cause in CAUSES:
        for name, host in conditions.hosts.items():
            for column in host.names():
                reading, which = reading_of(column)
                if reading == cause.reading:
                    ranks = ({int(which)} if cause.scope == "rank" else using.get((name, int(which)), set())
                             if cause.scope == "gpu" else None)
                    yield _Place(cause=cause, host=host, which=which), ranks, name


def _concerns(finding: WatchFinding, ranks: set[int] | None, host: str, rank_host: Mapping[int, str]) -> bool:
    hosts = set(finding.hosts) or {rank_host.get(rank, "") for rank in finding.ranks}
    if not hosts:
        return ranks is None or bool(ranks)
    if ranks is None:
        return host in hosts
    return bool(ranks & set(finding.ranks)) if finding.ranks else host in hosts and bool(ranks)


def _found(place: _Place, onset_s: float, until_s: float | None) -> Found | None:
    series = place.series()
    change = changed(series, onset_s, until_s)
    if change is None or change.during < place.cause.ratio * change.before:
        return None
    during = (series.seconds > onset_s) & (series.seconds < (until_s or np.inf))
    found = Found(host=place.host, which=place.which, change=change, during=during)
    return found if place.cause.counts(found) else None


class _Background:
    """How often conditions became bad before the onset of a finding, and how long they were observed."""

    def __init__(self, every: list[_Place], onset_s: float, least_s: float) -> None:
        self._onset_s = onset_s
        self._times = sum(times_by_itself(place.series(), onset_s, least_s) for place in every)
        self._seen_s = sum(self._before_s(place) for place in every)

    def _before_s(self, place: _Place) -> float:
        times = place.host.times()
        return max(self._onset_s - times[0] / 1e9, 0.0) if len(times) else 0.0

    def chance(self, place: _Place, change: Change, looked_at: int) -> float:
        """Returns the probability that any of the conditions looked at changes like this at the onset by chance."""
        return chance(change, max(self._before_s(place), 1.0), looked_at, self._times, self._seen_s)


def _is_shared(found: Found, place: _Place, there: list[_Place]) -> bool:
    """Returns whether hosts, ranks or GPUs that are not part of the finding have the same change."""
    same = [other for other in there if other.cause is place.cause
            and (place.cause.scope != "part" or other.which == place.which)]
    times = found.host.times()[found.during] / 1e9
    if not len(times) or not same:
        return False
    enough = min(HALF * (found.change.during - found.change.before), place.cause.change)
    have = [_change_of(other, times[0], times[-1]) >= enough for other in same]
    return sum(have) > SHARED * len(have)


def _change_of(place: _Place, begin_s: float, end_s: float) -> float:
    series = place.series()
    level = np.nanmean if series.events else np.nanmedian
    during = series.values[(series.seconds >= begin_s) & (series.seconds <= end_s)]
    before = series.values[(series.seconds < begin_s) & (series.seconds >= begin_s - max(end_s - begin_s, 60))]
    if np.isnan(during).all() or np.isnan(before).all():
        return 0.0
    return float(level(during) - level(before))


def _first_of_family(found: list[tuple[_Place, Found]]) -> list[tuple[_Place, Found]]:
    """Keeps the first condition of each family; drops disk waits of a host that is short of memory, as it is
    swapping."""
    said: set[tuple[str, str, str]] = set()
    first = []
    for place, one in found:
        is_swap = place.cause.family == "disk" and (place.host.host, "memory", "") in said
        if _family(place) not in said and not is_swap:
            first.append((place, one))
        said.add(_family(place))
    return first


def _family(place: _Place) -> tuple[str, str, str]:
    """Returns the key of conditions of which one is named: per family, and per GPU or per host with its ranks."""
    return place.host.host, place.cause.family, place.which if place.cause.scope == "gpu" else ""
