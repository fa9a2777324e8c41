"""Finds a pair of hosts between which data is in flight far longer than between other pairs that exchange as much.

It uses the kernels' counters for the TCP connections of ranks (`link_bytes`, `link_busy` of `contract/conditions.py`),
so it does not depend on the operation: in a ring, or an all-to-all, the times of a collective do not tell which pair of
hosts was slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgspec
import numpy as np

from distprof.contract.conditions import named, reading_of
from distprof.contract.watch_state import WatchFinding, WatchState
from distprof.merge.watch.machines import Conditions, HostConditions
from distprof.units import percent

MOMENTS, LEAST_MOMENTS = 20, 12
"""Newest moments of a host that are examined, and how many of them must be known."""
BEFORE_MOMENTS, LEAST_BEFORE = 120, 20
"""Moments before these that they are compared with, and how many of them must be known."""
ALIKE = 2.0
"""Pairs of hosts are compared if their bytes per second differ by at most this factor."""
FEWEST = 3
"""Fewest other pairs to compare with: of two, either may be the unusual one."""
ALONE, MORE = 2.0, 0.08
"""Data of a slow pair is in flight at least this many times as long as on every compared pair, and longer by at least
this share of the time. Delayed acknowledgements, for which kernels wait up to 40 ms, lengthen it on several pairs."""
CHANGED_ALONE, CHANGED = 2.5, 0.06
"""Alternatively, the time in flight grew at least this many times as much as on every compared pair, and by at least
this share of the time."""
LEAST_CHANGE = 0.01
"""Smaller growth of other pairs counts as this share of the time."""
USUALLY = 0.7
"""Smallest share of the examined moments in which the pair must be slow, in each direction."""
MOST_COLUMNS = 8192
"""Most connections that are examined; with more, none is, so that the watch takes no processor time from the job."""
EVERY_NS = 3_000_000_000
"""Time between two searches."""
GONE_LOOKS = 4
"""A slow link has ended after this many consecutive searches in which it was not slow."""
NEAR_NS = 45e9
"""Largest distance between the onset of a slow link and that of longer steps which it explains."""
EXPLAINED = ("regression", "slow_group")
"""Kinds of findings that a slow link can explain."""
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPair:
    """Two hosts between which data is in flight too long."""

    hosts: Pair
    busy: float
    """Share of the time in which data is in flight, in the direction in which it is smaller."""
    of_others: float
    """The largest such share of the pairs it was compared with."""
    before: float | None
    """The share of the pair before its change; None if it differs from other pairs without having changed."""
    num_others: int
    level: float
    """Threshold half-way to the normal share; the link is no longer slow below it."""
    began_ns: int
    """Onset in ns since the epoch, by the clock of the first host."""


def slow_pair(conditions: Conditions) -> SlowPair | None:
    """Returns the pair that is slow at the moment; None if none is, or several are."""
    links = links_of(conditions)
    found = [one for pair in links if (one := _slow(pair, links)) is not None]
    return found[0] if len(found) == 1 else None


def _slow(pair: Pair, links: Mapping[Pair, Link]) -> SlowPair | None:
    both = links[pair]
    like = [theirs for other, theirs in links.items() if other != pair
            and both.num_bytes / ALIKE <= theirs.num_bytes <= both.num_bytes * ALIKE]
    if len(like) < FEWEST:
        return None
    most = max(one.busy for one in like)
    changes = [one.most_change for one in like]
    changed = not np.isnan(both.change) and not np.isnan(changes).any() and both.change >= max(
        CHANGED, CHANGED_ALONE * max(LEAST_CHANGE, *changes))
    if not changed and not (both.busy >= ALONE * most and both.busy >= most + MORE):
        return None
    level = both.busy - both.change / 2 if changed else (both.busy + most) / 2
    if not both.is_above(level):
        return None
    return SlowPair(hosts=pair, busy=both.busy, of_others=most, num_others=len(like), level=level,
                    before=both.busy - both.change if changed else None, began_ns=both.began_ns(level))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The connections between two hosts, in both directions."""

    columns: tuple[tuple[HostConditions, tuple[str, ...]], ...]
    """For each of the two hosts, its readings and the names of its connections to the other host."""
    num_bytes: float
    """Bytes per second, both directions together."""
    busy: float
    """Share of the time in which data is in flight, in the direction in which it is smaller."""
    change: float
    """Growth of that share, in the direction in which it grew less; NaN if it is not known for long enough."""
    most_change: float
    """Growth in the other direction."""

    def is_above(self, level: float) -> bool:
        """Returns whether the share exceeds a level in at least `USUALLY` of the moments, in both directions."""
        return all(float(np.mean(_last(host, names) > level)) >= USUALLY for host, names in self.columns)

    def began_ns(self, level: float) -> int:
        """Returns the most likely time of a jump from below a level to above it, by the clock of the first host."""
        host, names = self.columns[0]
        most = max(self.busy - level, 1e-9)
        above = np.clip(np.nan_to_num(_sum(host, names), nan=level) - level, -most, most)
        place = int(np.argmax(np.cumsum(above[::-1])[::-1]))
        return int(host.times()[place])


def links_of(conditions: Conditions) -> dict[Pair, Link]:
    """Returns the links by the names of both hosts, where both hosts have readings of their connections."""
    columns: dict[Pair, dict[tuple[str, str], None]] = defaultdict(dict)
    of_host = _connections(conditions)
    if sum(map(len, of_host.values())) > MOST_COLUMNS:
        return {}
    local: dict[str, set[str]] = {name: {both.split("-")[0] for both in every} for name, every in of_host.items()}
    for one, other in combinations(sorted(of_host), 2):
        for mine, theirs in ((one, other), (other, one)):
            for both in of_host[mine]:
                if both.split("-")[1] in local[theirs] and both.split("-")[0] not in local[theirs]:
                    columns[one, other][mine, both] = None
    found = {}
    for pair, every in columns.items():
        sides = tuple((conditions.hosts[name], tuple(both for owner, both in every if owner == name)) for name in pair)
        link = _link(sides) if all(names for _, names in sides) else None
        if link is not None:
            found[pair] = link
    return found


def _connections(conditions: Conditions) -> dict[str, list[str]]:
    """Returns the connections of each host as `local-remote` address pairs."""
    found = dict[str, list[str]]()
    for name, host in conditions.hosts.items():
        ends = [which.split("-") for kind, which in map(reading_of, host.names()) if kind == "link_busy"]
        found[name] = ["-".join(both) for both in ends if len(both) == 2]
    return found


def note_of(conditions: Conditions) -> str | None:
    """Returns why slow links are not searched for; None if they are."""
    number = sum(map(len, _connections(conditions).values()))
    if number <= MOST_COLUMNS:
        return None
    return f"slow links are not searched for: {number:,} connections between hosts, more than {MOST_COLUMNS:,}"


def _link(sides: tuple[tuple[HostConditions, tuple[str, ...]], ...]) -> Link | None:
    busy = [_last(host, names) for host, names in sides]
    if any(len(values) < LEAST_MOMENTS for values in busy):
        return None
    num_bytes = sum(float(np.mean(_last(host, names, "link_bytes"))) for host, names in sides)
    changes = [float(np.mean(values)) - _before(host, names) for values, (host, names) in zip(busy, sides, strict=True)]
    return Link(columns=sides, num_bytes=num_bytes, busy=min(float(np.mean(values)) for values in busy),
                change=float(np.min(changes)), most_change=float(np.max(changes)))


def _before(host: HostConditions, names: Iterable[str]) -> float:
    """Returns the median before the examined moments; NaN if too few of them are known."""
    values = _sum(host, names)[-MOMENTS - BEFORE_MOMENTS:-MOMENTS]
    values = values[~np.isnan(values)]
    return float(np.median(values)) if len(values) >= LEAST_BEFORE else np.nan


def _sum(host: HostConditions, names: Iterable[str], kind: str = "link_busy") -> Any:
    return np.sum([host.column(named(kind, one)) for one in names], axis=0)


def _last(host: HostConditions, names: Iterable[str], kind: str = "link_busy") -> Any:
    values = _sum(host, names, kind)[-MOMENTS:]
    return values[~np.isnan(values)]


class LinkSearch:
    """Searches for slow links during the job, and keeps those that were found."""

    def __init__(self) -> None:
        """Starts without findings."""
        self._findings: list[WatchFinding] = []
        self._current: SlowPair | None = None
        self._due_ns = self._missed = 0
        self._note: str | None = None

    def add(self, state: WatchState, conditions: Conditions) -> None:
        """Adds slow links to the findings of a state. A finding about longer steps that a link explains becomes
        `slow_link`.

        Args:
            state: The current state of the job.
            conditions: Readings of all hosts.
        """
        if state.time_ns >= self._due_ns and state.running:
            self._due_ns = state.time_ns + EVERY_NS
            self._note = note_of(conditions)
            self._look(state, conditions)
        if self._note is not None:
            state.notes = [*state.notes, self._note]
        for one in self._findings:
            if any(known.kind == "slow_link" and known.hosts == one.hosts for known in state.findings):
                continue
            place = next((place for place, known in enumerate(state.findings) if _explains(one, known)), None)
            if place is None:
                state.findings.append(msgspec.structs.replace(one))
            else:
                state.findings[place] = msgspec.structs.replace(
                    state.findings[place], kind="slow_link", ranks=one.ranks, hosts=one.hosts, phase="communication",
                    why=one.why)

    def _look(self, state: WatchState, conditions: Conditions) -> None:
        if self._current is None:
            self._current = slow_pair(conditions)
            if self._current is not None:
                self._missed = 0
                self._findings.append(_finding(state, self._current, len(self._findings) + 1))
            return
        link = links_of(conditions).get(self._current.hosts)
        self._missed = 0 if link is not None and link.busy >= self._current.level else self._missed + 1
        if self._missed >= GONE_LOOKS:
            self._findings[-1].until_step = max(state.num_steps - 1, self._findings[-1].onset_step)
            self._current = None


def _explains(link: WatchFinding, known: WatchFinding) -> bool:
    return known.kind in EXPLAINED and abs(known.onset_ns - link.onset_ns) <= NEAR_NS and (
        known.until_step is None or link.until_step is not None)


def _finding(state: WatchState, pair: SlowPair, number: int) -> WatchFinding:
    ago = (state.time_ns - pair.began_ns) / state.step_ns if state.step_ns else 0.0
    onset = max(int(state.num_steps - max(ago, 0.0)), state.first_watched or 0)
    before = f" ({percent(pair.before)} before)" if pair.before is not None else ""
    return WatchFinding(
        id=f"link-{number}", kind="slow_link", hosts=list(pair.hosts), onset_step=onset, onset_ns=pair.began_ns,
        phase="communication", ranks=sorted(one.rank for one in state.ranks if one.host in pair.hosts),
        why=[f"data between them is under way {percent(pair.busy)} of the time{before}, and at most "
             f"{percent(pair.of_others)} between {pair.num_others} other pairs of hosts that exchange as much"])
