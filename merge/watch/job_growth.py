"""Findings about steps that grew with no rank that was late by itself: regressions, slow groups and links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.contract.watch_state import WatchFinding
from distprof.merge.watch import shifts
from distprof.merge.watch.everybody import Growth, growths, link_of, slow_from_start, slow_groups, who_grew
from distprof.merge.watch.late_ranks import TOGETHER_NS, Late
from distprof.merge.watch.onset import refined
from distprof.merge.watch.slow_ranks import Z95, about, chance, costed
from distprof.merge.watch.view import MATERIAL, View

PHASES = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")


def job_growths(view: View, known: Sequence[WatchFinding]) -> list[WatchFinding]:
    """Those that no known finding explains."""
    found = []
    near = max(TOGETHER_NS / view.typical_ns, 100.0)
    for growth in growths(view):
        if any(abs(one.onset_step - growth.begin) <= near + growth.slack for one in known):
            continue
        if (one := _finding(view, growth)) is not None:
            found.append(one)
    if not any(one.kind in ("slow_link", "slow_group") for one in [*found, *known]):
        found += _from_start(view)
    return found


def _finding(view: View, growth: Growth) -> WatchFinding | None:
    moved, who = slow_groups(view, growth), who_grew(view, growth)
    if moved is None and who is None:
        return None
    place = who[1][0] if who is not None and who[0] == "rank" else None
    onset, _ = refined(view, growth.begin, growth.slack, place)
    end = None if growth.end is None else refined(view, growth.end, growth.slack, place)[0]
    if place is not None:
        late = Late(place=place, begin=onset, slack=growth.slack, end=end, error_ns=growth.error_ns,
                    shift_ns=growth.after_ns - growth.before_ns, strength=growth.strength, from_start=False)
        found = about(view, [late], onset, end)
    elif who is not None or moved is None:
        found = _begun(view, onset, end)
        found.phase = _phase(view, growth) if len(view.ranks) == 1 or view.own_phases else None
    else:
        found = _begun(view, onset, end)
        _name_groups(view, found, moved[0])
    found.before_ns, found.after_ns, found.p = growth.before_ns, growth.after_ns, chance(growth.strength, view)
    found.per_step_ns = growth.after_ns - growth.before_ns
    found.per_step_error_ns = Z95 * growth.error_ns
    return costed(view, found)


def _begun(view: View, onset: float, end: float | None) -> WatchFinding:
    return WatchFinding(id="", kind="regression", onset_step=int(onset), onset_ns=view.time_of(onset),
                        until_step=None if end is None else int(end) - 1)


def _name_groups(view: View, found: WatchFinding, slow: list[int]) -> None:
    """The link or group; where all communication is slower it stays a regression."""
    groups = view.sampled.groups
    found.phase = "communication"
    link = link_of(groups, slow, dict(view.hosts))
    if link is not None:
        found.kind, found.hosts = "slow_link", list(link)
        found.ranks = sorted({rank for place in slow for rank in groups[place][1]
                              if view.hosts.get(rank) in link})
    elif len({groups[place][:2] for place in slow}) == 1 and len({one[:2] for one in groups}) > 1:
        found.kind, found.ranks = "slow_group", sorted(groups[slow[0]][1])
        found.hosts = sorted({view.hosts.get(rank, "") for rank in found.ranks})


def _from_start(view: View) -> list[WatchFinding]:
    slow = slow_from_start(view)
    if slow is None or not len(view.grid.blocks.first):
        return []
    found = _begun(view, int(view.grid.blocks.first[0]), None)
    _name_groups(view, found, slow[0])
    if found.kind == "regression" or slow[1] < MATERIAL * view.typical_ns:
        return []
    found.per_step_ns = slow[1]
    return [costed(view, found)]


def _phase(view: View, growth: Growth) -> str | None:
    """The phase that grew most on the median rank, where it is most of the growth."""
    series, size = view.step_times, growth.after_ns - growth.before_ns
    at = series.place(growth.begin)
    until = len(series.step) if growth.end is None else series.place(growth.end)
    grown = {}
    for name in PHASES:
        middle = np.median(shifts.filled(view.grid.blocks.field(name)), axis=1)
        before = middle[max(at - 4 * shifts.LEAST, 0):at]
        grown[name] = float(np.mean(middle[at:until]) - np.mean(before)) if len(before) and until > at else 0.0
    most = max(grown, key=lambda name: grown[name])
    return most.removesuffix("_ns") if grown[most] >= 0.6 * size else None
