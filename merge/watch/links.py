"""A pair of hosts between which data takes far longer than between all other pairs that exchange as much.

It is found in what kernels count for the connections of ranks (`link_bytes`, `link_busy` of `contract/conditions.py`),
whatever the operation is: in a ring, or where all ranks exchange with all, no collective tells between which two hosts
it was slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgspec
import numpy as np

from distprof.contract.conditions import named, reading_of
from distprof.contract.watch_state import RankState, WatchFinding, WatchState
from distprof.merge.watch.machines import Conditions, HostConditions
from distprof.units import percent

MOMENTS, LEAST_MOMENTS = 20, 12
"""Of a host, that are looked at: those that came last; and that must be known."""
ALIKE = 2.0
"""Pairs that exchange up to so many times as much, or as little, are compared."""
FEWEST = 3
"""Pairs that it takes: of two, either may be the unusual one."""
ALONE, MORE = 2.0, 0.08
"""A pair must have data under way so many times as long as each of those, and so much of the time longer: that it was
acknowledged late, for which kernels wait up to 40 ms, makes several alike."""
USUALLY = 0.7
"""Of the moments in which it must be so."""
MOST_COLUMNS = 8192
"""Of more, none is looked at: a watch takes no processor from the job."""
EVERY_NS = 3_000_000_000
GONE_LOOKS = 4
"""Looks at which it is no longer so, until it is over."""
NEAR_NS = 45e9
"""Between the onset of a link and that of longer steps which it explains."""
EXPLAINED = ("regression", "slow_group")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPair:
    """Two hosts, and what is slow between them."""

    hosts: tuple[str, str]
    busy: float
    """Share of the time in which data was under way, in the direction in which it was less."""
    of_others: float
    """The largest of the pairs it was compared with."""
    num_others: int
    began_ns: int
    """Clock of the first of the two hosts."""


def slow_pair(conditions: Conditions) -> SlowPair | None:
    """The only pair that is slow by now; None where none is, or several are."""
    links = _links(conditions)
    found = []
    for pair, both in links.items():
        like = [other for other, theirs in links.items() if other != pair
                and both.num_bytes / ALIKE <= theirs.num_bytes <= both.num_bytes * ALIKE]
        if len(like) < FEWEST:
            continue
        most = max(links[other].busy for other in like)
        if both.busy >= ALONE * most and both.busy >= most + MORE and both.is_above((both.busy + most) / 2):
            found.append(SlowPair(hosts=pair, busy=both.busy, of_others=most, num_others=len(like),
                                  began_ns=both.began_ns((both.busy + most) / 2)))
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """Both directions between two hosts."""

    columns: tuple[tuple[HostConditions, tuple[str, ...]], ...]
    num_bytes: float
    """Per second, both directions."""
    busy: float

    def is_above(self, level: float) -> bool:
        """Whether it usually is."""
        return all(float(np.mean(_last(host, names) > level)) >= USUALLY for host, names in self.columns)

    def began_ns(self, level: float) -> int:
        """Since when, by the first host: the time behind the last stretch of three moments below."""
        host, names = self.columns[0]
        values = _sum(host, names)
        low = np.convolve(np.nan_to_num(values) < level, np.ones(3), "valid") == 3
        place = int(np.flatnonzero(low)[-1]) + 3 if low.any() else 0
        return int(host.times()[min(place, host.count - 1)])


def _links(conditions: Conditions) -> dict[tuple[str, str], _Link]:
    """By the names of both hosts, where both tell."""
    columns: dict[tuple[str, str], dict[tuple[str, str], None]] = defaultdict(dict)
    of_host: dict[str, list[str]] = {}
    for name, host in conditions.hosts.items():
        ends = [which.split("-") for kind, which in map(reading_of, host.names()) if kind == "link_busy"]
        of_host[name] = ["-".join(both) for both in ends if len(both) == 2]
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


def _link(sides: tuple[tuple[HostConditions, tuple[str, ...]], ...]) -> _Link | None:
    busy = [_last(host, names) for host, names in sides]
    if any(len(values) < LEAST_MOMENTS for values in busy):
        return None
    num_bytes = sum(float(np.mean(_last(host, names, "link_bytes"))) for host, names in sides)
    return _Link(columns=sides, num_bytes=num_bytes, busy=min(float(np.mean(values)) for values in busy))


def _sum(host: HostConditions, names: Iterable[str], kind: str = "link_busy") -> Any:
    return np.sum([host.column(named(kind, one)) for one in names], axis=0)


def _last(host: HostConditions, names: Iterable[str], kind: str = "link_busy") -> Any:
    values = _sum(host, names, kind)[-MOMENTS:]
    return values[~np.isnan(values)]


class LinkSearch:
    """Goes on looking, and keeps what was found."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._findings: list[WatchFinding] = []
        self._due_ns = self._missed = 0

    def add(self, state: WatchState, conditions: Conditions) -> None:
        """Adds slow links to the findings of a state; longer steps that one explains become it.

        Args:
            state: As of now.
            conditions: Of all hosts.
        """
        if state.time_ns >= self._due_ns and state.running:
            self._due_ns = state.time_ns + EVERY_NS
            self._look(state, slow_pair(conditions))
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

    def _look(self, state: WatchState, pair: SlowPair | None) -> None:
        current = self._findings[-1] if self._findings and self._findings[-1].until_step is None else None
        if current is not None and (pair is None or list(pair.hosts) != current.hosts):
            self._missed += 1
            if self._missed >= GONE_LOOKS:
                current.until_step = state.num_steps - 1
            return
        self._missed = 0
        if pair is None:
            return
        if current is None:
            self._findings.append(_finding(state, pair, len(self._findings) + 1))
        self._findings[-1].why = [
            f"data between them is under way {percent(pair.busy)} of the time, and at most {percent(pair.of_others)} "
            f"between {pair.num_others} other pairs of hosts that exchange as much"]


def _explains(link: WatchFinding, known: WatchFinding) -> bool:
    return known.kind in EXPLAINED and abs(known.onset_ns - link.onset_ns) <= NEAR_NS and (
        known.until_step is None or link.until_step is not None)


def _finding(state: WatchState, pair: SlowPair, number: int) -> WatchFinding:
    ago = (state.time_ns - pair.began_ns) / state.step_ns if state.step_ns else 0.0
    onset = max(int(state.num_steps - max(ago, 0.0)), state.first_watched or 0)
    return WatchFinding(id=f"link-{number}", kind="slow_link", hosts=list(pair.hosts), onset_step=onset,
                        onset_ns=pair.began_ns, phase="communication", ranks=_ranks(state.ranks, pair.hosts))


def _ranks(ranks: Iterable[RankState], hosts: Iterable[str]) -> list[int]:
    return sorted(one.rank for one in ranks if one.host in set(hosts))

