"""Which rank answers for the waiting in each collective, and with which activity.

A rank that comes late to a collective has spent more time than the others on something since its group last met. Where
that was waiting in another group, those ranks answer that made it wait there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from distprof.merge.blame.activities import Activities, Activity, ActivityLane
from distprof.merge.blame.waiting import Meeting


class Cause(NamedTuple):
    """What made others wait."""

    rank: int | None
    """None: communication itself, which was slower for some."""
    activity: int | None
    """Number of an activity; None where there is no timeline."""


TRACE = 1e-4
"""Part of an excess that counts where larger ones explain the whole delay."""
UNKNOWN = -(1 << 62)
"""Label of what came before anything was recorded; no collective has so large a number."""
Shares = Mapping[Cause, float]


class Blame:
    """Shares of blame by collective. They are made in order of time, because earlier waits explain later ones."""

    def __init__(self, lanes: Mapping[int, ActivityLane], activities: Activities,
                 begins: Mapping[tuple[int, int], int]) -> None:
        """Holds what each rank was doing.

        Args:
            lanes: By rank: activities, `communication`, and waits for collectives.
            activities: Names of them.
            begins: When the step began, by rank and step; for what came before the first meeting.
        """
        self._begins = begins
        self.shares: dict[int, Shares] = {}
        self._communication = activities.number(Activity("communication"))
        self._lanes = lanes
        self._seen: dict[bytes, list[Meeting]] = defaultdict(list)
        self._left: dict[bytes, list[int]] = defaultdict(list)
        self._around: dict[bytes, list[bytes]] = {}
        self._sets: dict[bytes, frozenset[int]] = {}

    def add(self, meeting: Meeting, *, look: bool) -> None:
        """Finds who answers for the waiting in a collective. Collectives are added in order of their last arrival.

        Args:
            meeting: The collective.
            look: False where its waiting costs too little to look for causes: the late rank answers.
        """
        self.shares[meeting.number] = (self._shares(meeting, meeting.late) if look else None) or {
            Cause(int(meeting.ranks[meeting.late]), None): 1.0}
        members = meeting.ranks.tobytes()
        if members not in self._around:
            self._join(members, frozenset(meeting.ranks.tolist()))
        left = self._left[members]
        left.append(max(meeting.left_ns, left[-1] if left else 0))
        self._seen[members].append(meeting)

    def _join(self, members: bytes, ranks: frozenset[int]) -> None:
        """Registers a new set of ranks. A meeting of a larger set brings it together too."""
        self._around[members] = [members]
        for other, known in self._sets.items():
            if ranks < known:
                self._around[members].append(other)
            elif ranks > known:
                self._around[other].append(members)
        self._sets[members] = ranks

    def _shares(self, meeting: Meeting, late: int) -> Shares | None:
        left_ns = self._left_before(meeting)
        if left_ns is None:
            return None
        split = [self._lanes[rank].split(start, end) if rank in self._lanes else {} for rank, start, end in zip(
            meeting.ranks.tolist(), left_ns.tolist(), meeting.arrival_ns.tolist(), strict=True)]
        excess = _excess(split, late)
        # it may have been let go late the last time they met, or have begun the step late
        began_late = self._communication if self._met_before(meeting) is not None else UNKNOWN
        excess[began_late] = excess.get(began_late, 0) + _behind(left_ns, late)
        shares = _explained(excess, _behind(meeting.arrival_ns, late), self._communication)
        return self._resolved(int(meeting.ranks[late]), shares) if shares else None

    def _left_before(self, meeting: Meeting) -> Any | None:
        """From when on each rank could come: since the set last met, else since its step began."""
        before = self._met_before(meeting)
        if before is not None:
            return before.end_ns[np.searchsorted(before.ranks, meeting.ranks)]
        begins = [self._begins.get((rank, meeting.step)) for rank in meeting.ranks.tolist()]
        return None if None in begins else np.minimum(np.array(begins, np.int64), meeting.arrival_ns)

    def _met_before(self, meeting: Meeting) -> Meeting | None:
        """The last meeting of all these ranks that ended before the first of them came to this one."""
        found, left_ns = None, -1
        for members in self._around.get(meeting.ranks.tobytes(), ()):
            left = self._left[members]
            place = bisect_right(left, meeting.first_ns) - 1
            if place >= 0 and left[place] > left_ns:
                found, left_ns = self._seen[members][place], left[place]
        return found

    def _resolved(self, rank: int, shares: Mapping[int, float]) -> Shares:
        """Replaces waiting in another collective by the causes of that waiting."""
        found: dict[Cause, float] = defaultdict(float)
        for label, share in shares.items():
            if label == UNKNOWN:
                found[Cause(rank, None)] += share
            elif label < 0:
                for cause, part in self.shares.get(int(Activities.waiting_for(label)), {
                        Cause(None, self._communication): 1.0}).items():
                    found[cause] += share * part
            elif label == self._communication:
                found[Cause(None, label)] += share
            else:
                found[Cause(rank, label)] += share
        return {cause: share for cause, share in found.items() if share > 0}


def _behind(times: Any, late: int) -> float:
    """By how much one of these times is later than the median of the others; ns."""
    later = (times[late] - times).tolist()  # epoch times are too large for doubles, differences are not
    del later[late]
    return float(median(later))


def _excess(split: list[dict[int, int]], late: int) -> dict[int, float]:
    """Time that the late rank spent on each label beyond the median of the others."""
    mine = split[late]
    others = [one for index, one in enumerate(split) if index != late]
    return {label: float(spent - median([one.get(label, 0) for one in others])) for label, spent in mine.items()}


def _explained(excess: Mapping[int, float], late_ns: float, communication: int) -> dict[int, float]:
    """Shares of a delay: the largest excess explains it first, then the next, until all of it is explained.

    What the rank did itself counts as one sum, so that an activity in which it was faster offsets one in which it was
    slower.

    Args:
        excess: Time beyond that of the others by label.
        late_ns: The delay.
        communication: Its label, which like that of a wait is nothing that the rank did itself.
    """
    mine = {label: part for label, part in excess.items() if label >= 0 and label != communication}
    whole = {label: part for label, part in excess.items() if label not in mine} | {None: sum(mine.values())}
    found = _largest_first(whole, late_ns)
    found |= _largest_first(mine, found.pop(None, 0.0))
    total = sum(found.values())
    return {label: part / total for label, part in found.items() if label is not None}


def _largest_first(excess: Mapping[Any, float], limit: float) -> dict[Any, float]:
    """Takes the largest first, up to the limit. The others keep a tiny share: the cause of a larger one may itself be
    a rank that waits, and is then left out."""
    found, rest = {}, limit
    for label, part in sorted(excess.items(), key=lambda one: -one[1]):
        if part <= 0:
            break
        found[label] = max(min(part, rest), part * TRACE)
        rest -= part
    return found
