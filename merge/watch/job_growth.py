"""Findings about longer steps that no late rank explains (all ranks, process groups, links), and growing memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec.structs import replace as replace_fields

from distprof.arrays import Floats
from distprof.contract.watch_state import LongerSteps, WatchFinding
from distprof.merge.watch import shifts
from distprof.merge.watch.everybody import Growth, growths, link_of, slow_from_start, slow_groups, who_grew
from distprof.merge.watch.grid import LEVELS, Blocks
from distprof.merge.watch.late_ranks import Late, together_steps
from distprof.merge.watch.late_ranks import growth as step_growth
from distprof.merge.watch.onset import refined
from distprof.merge.watch.slow_ranks import Z95, about, chance, costed
from distprof.merge.watch.state import UNSAMPLED
from distprof.merge.watch.view import MATERIAL, View

PHASES = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")
PARTS = (10, 30)
"""Numbers of equal stretches into which the time after the warm-up is divided. The lowest value in each counts, as
memory that is freed later is no leak. Few stretches show growth from the start, more of them growth that began
later."""
LEAST_PARTS = 8
"""Fewest stretches at the end that must all grow. By chance alone, 8 values are in ascending order once in 8! times
(Mann 1945, for the largest value of his statistic)."""
EVEN = 0.25
"""Share of the mean growth per stretch that each stretch must reach."""
LEAST_NS = 120e9
LEAST_STEPS = 1000
"""Shortest watched time and fewest watched steps: less is warm-up."""
LEAST_BYTES = 64e6
"""Smallest growth that is reported."""
LEAST_SHARE = 0.02
"""Smallest growth that is reported, as a share of the memory at its start."""
WARM_UP = 0.33
"""Share of the watched time that is warm-up."""
STEADY = 0.7
"""Share of the mean slope that the last third must reach: growth that levels off is a cache that fills."""


def job_growths(view: View, known: Sequence[WatchFinding]) -> list[WatchFinding]:
    """Returns findings about longer steps that no known finding explains.

    Args:
        view: The job.
        known: Findings about ranks that stay slow.
    """
    found: list[WatchFinding] = []
    near = together_steps(view.typical_ns)
    for growth in growths(view):
        if any(abs(one.onset_step - growth.begin) <= near + growth.slack for one in known):
            continue
        if (one := _finding(view, growth)) is not None:
            # the block that holds the onset may have made the stretch before it look longer
            found = [other for other in found if abs(other.onset_step - one.onset_step) > growth.slack]
            found.append(one)
    if not any(one.kind in ("slow_link", "slow_group") for one in [*found, *known]):
        found += _from_start(view)
    return found


def still_longer(view: View, known: Iterable[WatchFinding], found: Sequence[WatchFinding]) -> Iterator[WatchFinding]:
    """Yields known regressions that were not found again, though steps are as long as before: they have not ended.

    Args:
        view: The job.
        known: Findings of earlier searches.
        found: Those of this one.
    """
    now_ns = float(np.median(view.step_times.values[-shifts.LEAST:])) if len(view.step_times.values) else 0.0
    near = together_steps(view.typical_ns)
    for one in known:
        again = any(abs(other.onset_step - one.onset_step) <= near for other in found)
        if one.kind == "regression" and one.until_step is None and not again and (
                one.before_ns is not None and one.after_ns is not None and now_ns > (one.before_ns + one.after_ns) / 2):
            yield costed(view, replace_fields(one, id=""))


def unexplained(view: View) -> LongerSteps | None:
    """Returns the largest growth of step times; None if they did not grow."""
    largest = max(growths(view), key=lambda one: one.after_ns - one.before_ns, default=None)
    if largest is None:
        return None
    one = _located(view, largest)
    return LongerSteps(from_step=one.begin, until_step=None if one.end is None else one.end - 1,
                       before_ns=one.before_ns, after_ns=one.after_ns)


def _located(view: View, growth: Growth) -> Growth:
    """Returns the growth from where it began, if rows show that to be some blocks earlier: too few blocks were before
    it for a change to be searched for there."""
    onset, _ = refined(view, growth.begin, growth.slack, None)
    series = view.step_times
    if not 0 < series.place(onset) < series.place(growth.begin):
        return growth
    before, after, error, error_after = step_growth(series, onset, growth.end)
    if after - before < growth.after_ns - growth.before_ns:
        return growth
    return replace(growth, begin=int(onset), before_ns=before, after_ns=after,
                   error_ns=float(np.hypot(error, error_after)))


def _finding(view: View, growth: Growth) -> WatchFinding | None:
    moved, who = slow_groups(view, growth), who_grew(view, growth)
    if moved is None and who is None:
        growth = _located(view, growth)
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
        found.why = [UNSAMPLED] if len(view.ranks) > 1 and view.sampled_own is None else []
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
    """Makes a finding one about a link or group; if all communication became slower, it remains a regression."""
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
    """Returns the phase that grew most on the median rank, if that is at least 60 % of the growth of steps."""
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


def growing(blocks: Blocks) -> dict[str, dict[int, tuple[float, int]]]:
    """Finds memory that keeps growing.

    It must grow in every stretch up to the end, and about as much in the last third of them as on average.

    Returns:
        By name of `LEVELS` and column of the rank: bytes per hour, and the step at which the growth began.
    """
    if len(blocks.first) < 4 * PARTS[0] or blocks.end_ns[-1] - blocks.end_ns[0] < LEAST_NS or (
            blocks.steps.sum() < LEAST_STEPS):
        return {}
    return {name: found for name in LEVELS if (found := _of(blocks, blocks.field(name)))}


def _of(blocks: Blocks, values: Floats) -> dict[int, tuple[float, int]]:
    found: dict[int, tuple[float, int]] = {}
    for parts in PARTS:
        for place, begun in _in_parts(blocks, values, parts).items():
            found.setdefault(place, begun)
    return found


def _in_parts(blocks: Blocks, values: Floats, parts: int) -> dict[int, tuple[float, int]]:
    time = blocks.end_ns - blocks.end_ns[0]
    bounds = np.searchsorted(time, np.linspace(WARM_UP, 1, parts + 1) * time[-1])
    if (np.diff(bounds) < 2).any():
        return {}
    lowest = np.minimum.reduceat(values[:bounds[-1] + 1], bounds[:-1], axis=0)
    found = {}
    for place in np.flatnonzero(lowest[-1] - lowest.min(axis=0) >= LEAST_BYTES).tolist():
        first = _grows_from(lowest[:, place])
        if first is not None:
            slope = float(np.median(np.diff(lowest[first:, place]))) / (time[-1] * (1 - WARM_UP) / parts)
            begun = _begin(blocks, values[:, place], float(lowest[0, place]), slope, time) if not first else (
                _later(blocks, lowest[first:, place], slope, float(time[bounds[-2]])))
            found[place] = slope * 3600e9, begun
    return found


def _grows_from(lowest: Floats) -> int | None:
    """Returns the first stretch from which on memory grows evenly; None if it does not.

    Args:
        lowest: Lowest memory in each stretch, in bytes.
    """
    steps = np.diff(lowest)
    for first in range(len(lowest) - LEAST_PARTS + 1):
        later = steps[first:]
        third = len(later) // 3
        if later.min() > 0 and later.min() >= EVEN * later.mean() and (
                later.sum() >= max(LEAST_BYTES, LEAST_SHARE * lowest[first])) and (
                later[-third:].mean() >= STEADY * later.mean()):
            return first
    return None


def _begin(blocks: Blocks, values: Floats, level: float, slope: float,
           time: Floats) -> int:
    """Returns the step at which the growth begins: after the last block of the warm-up that is clearly above the line
    of the growth (slope in bytes per ns), extended backwards."""
    middle = np.searchsorted(time, WARM_UP * time[-1])
    line = level + slope * (time - time[middle])
    below = np.flatnonzero(values[:middle] > line[:middle] + 0.25 * slope * time[-1])
    return int(blocks.first[below[-1] + 1 if len(below) else 0])


def _later(blocks: Blocks, lowest: Floats, slope: float, last: float) -> int:
    """Returns the step at which the line of the growth, through the last stretch, which begins at `last`, has the level
    of the first stretch."""
    at = last - (lowest[-1] - lowest[0]) / slope
    place = int(np.searchsorted(blocks.end_ns - blocks.end_ns[0], at))
    return int(blocks.first[min(place, len(blocks.first) - 1)])
