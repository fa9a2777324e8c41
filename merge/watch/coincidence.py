"""Whether two things changed together, or only by chance at about the same time.

A condition goes along with a finding if it becomes worse at the finding's onset, stays so for as long, and does not
begin so by itself: how often it does is counted in what was seen before, on this host and on others. The probability of
a chance coincidence is that of a Poisson process with this rate (event coincidence analysis, Donges et al. 2016),
corrected for the number of conditions that were looked at (Bonferroni).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.arrays import Flags, Floats

MEDIAN_OF = 5
"""Moments over which noise is smoothed; an edge stays where it is."""
NEAR_S = 4.0
"""How far apart two onsets may be."""
END_RATIO = 0.1
"""How far apart two ends may be at least, of what lasted so long."""
BEFORE_S = (60.0, 600.0)
"""What is compared with: at least and at most so long before, in between as long as it has lasted."""
FEWEST_BEFORE, FEWEST_DURING = 30, 8
"""Moments."""
WITH, WITHOUT = 0.8, 0.1
"""Shares of the moments: worse while it lasts in at least so many, before in at most so many."""
EVENTS_APART_S = (5.0, 25.0)
"""Errors that come one by one are one condition up to so far apart, at least and at most."""
MEAN_GAPS = 6
"""And up to so many times their mean distance: of a Poisson process, one of 400 gaps is longer."""
FEWEST_EVENTS = 4
"""Moments with errors: fewer may just happen."""
FIRST_GAPS, FIRST_S = 2.0, 8.0
"""The first of them may come so many mean distances later than what they go along with, and so much later at most."""
CLOSE_S = 20.0
"""A step is there within so long; a drift is not."""
STEP_RATIO = 0.5
"""Of a change that has to come at once."""
LONG_RATIO = 0.5
"""What has lasted half as long before counts as having happened before."""
LONG_S = (6.0, 30.0)
"""But at least and at most so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A condition over time; larger is worse."""

    seconds: Floats
    """When; shape (moments,), ascending."""
    values: Floats
    """Shape (moments,); NaN where unknown."""
    bad: float
    """At least so large, it may slow something down."""
    change: float
    """At least so much more than before."""
    events: bool = False
    """Rates of what happens now and then: each counts, however few there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How a condition became worse."""

    before: float
    """Median; of events the mean."""
    during: float
    since_s: float
    times_before: int
    """How often it had been like that before."""
    near_s: float
    """How far apart the onsets could have been."""


def changed(series: Series, onset_s: float, until_s: float | None) -> Change | None:
    """The change that begins at an onset and lasts as long; None if there is none.

    Args:
        series: What may have changed.
        onset_s: When it should begin, in the seconds of the series.
        until_s: When it should end; None while it goes on.
    """
    end_s = series.seconds[-1] if until_s is None and len(series.seconds) else until_s or 0.0
    known = ~np.isnan(series.values)
    seconds, values = series.seconds[known], series.values[known]
    back_s = min(max(end_s - onset_s, BEFORE_S[0]), BEFORE_S[1])
    before = (seconds < onset_s - NEAR_S) & (seconds >= onset_s - NEAR_S - back_s)
    during = (seconds > onset_s + NEAR_S) & (seconds < max(end_s - NEAR_S, onset_s + NEAR_S)) \
        if until_s is not None else seconds > onset_s + NEAR_S
    if before.sum() < FEWEST_BEFORE or during.sum() < FEWEST_DURING:
        return None
    if series.events and (values[during] > 0).sum() < FEWEST_EVENTS:
        return None
    level = np.mean if series.events else np.median
    low, high = float(level(values[before])), float(level(values[during]))
    if high < series.bad or high - low < series.change:
        return None
    if not series.events and _step(values, seconds, before, during) < STEP_RATIO * (high - low):
        return None
    apart_s = _apart_s(seconds[during], values[during])
    late_s = min(FIRST_GAPS * apart_s / MEAN_GAPS, FIRST_S) if series.events else 0.0
    worse = _worse(series, seconds, values, (low + high) / 2, apart_s)
    if worse[during].mean() < WITH or worse[before].mean() > WITHOUT:
        return None
    return _at_onset(seconds, worse, (onset_s, until_s), (low, high), late_s)


def _step(values: Floats, seconds: Floats, before: Flags, during: Flags) -> float:
    """The change from just before to just after."""
    just_before = before & (seconds >= seconds[before][-1] - CLOSE_S)
    just_after = during & (seconds <= seconds[during][0] + CLOSE_S)
    return float(np.median(values[just_after]) - np.median(values[just_before]))


def _at_onset(seconds: Floats, worse: Flags, when: tuple[float, float | None], levels: tuple[float, float],
              late_s: float) -> Change | None:
    (onset_s, until_s), spans = when, runs(seconds, worse)
    starts = [span for span in spans if -NEAR_S <= span[0] - onset_s <= NEAR_S + late_s]
    if not starts:
        return None
    if until_s is not None:
        near_s = max(NEAR_S, END_RATIO * (until_s - onset_s))
        if not any(abs(end - until_s) <= near_s for _, end in spans):
            return None
    least_s = least_long_s((until_s or float(seconds[-1])) - onset_s)
    times = sum(end - begin >= least_s for begin, end in spans if end < onset_s - NEAR_S)
    return Change(before=levels[0], during=levels[1], since_s=starts[0][0], times_before=times,
                  near_s=NEAR_S + late_s / 2)


def least_long_s(lasted_s: float) -> float:
    """How long something has to last to count like what lasted so long."""
    return min(max(LONG_RATIO * lasted_s, LONG_S[0]), LONG_S[1])


def times_by_itself(series: Series, before_s: float, least_s: float) -> int:
    """How often a condition became bad before a moment, without anything else.

    Args:
        series: Larger is worse.
        before_s: The moment.
        least_s: It counts if it lasted so long.
    """
    known = ~np.isnan(series.values) & (series.seconds < before_s - NEAR_S)
    seconds, values = series.seconds[known], series.values[known]
    if len(values) < FEWEST_BEFORE:
        return 0
    limit = max(series.bad, float(np.median(values)) + series.change)
    if values.max() < limit and not series.events:  # most never do
        return 0
    return sum(end - begin >= least_s for begin, end in runs(seconds, _worse(series, seconds, values, limit)))


def _apart_s(seconds: Floats, rates: Floats) -> float:
    at = seconds[rates > 0]
    gap_s = (at[-1] - at[0]) / (len(at) - 1) if len(at) > 1 else np.inf
    return float(np.clip(MEAN_GAPS * gap_s, *EVENTS_APART_S))


def _worse(series: Series, seconds: Floats, values: Floats, limit: float, apart_s: float = EVENTS_APART_S[1]) -> Flags:
    """Where it is worse than a limit; between events that are close it is so, too."""
    if not series.events:
        return np.asarray(smooth(values) >= limit)
    at = seconds[values > 0]
    if not len(at):
        return np.zeros(len(values), bool)
    after = np.searchsorted(at, seconds)
    previous = np.where(after > 0, at[np.maximum(after - 1, 0)], -np.inf)
    following = np.where(after < len(at), at[np.minimum(after, len(at) - 1)], np.inf)
    between = following - previous <= apart_s
    fresh = (previous >= seconds[-1] - apart_s) & (following == np.inf)  # it may go on
    return np.asarray(between | (values > 0) | fresh)


def smooth(values: Floats) -> Floats:
    """Medians of neighbours, of fewer of them at both ends; shape (moments,)."""
    half = MEDIAN_OF // 2
    if len(values) < MEDIAN_OF:
        return values
    padded = np.concatenate((np.full(half, values[0]), values, np.full(half, values[-1])))
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_OF), axis=1))


def runs(seconds: Floats, flags: Flags) -> list[tuple[float, float]]:
    """Begin and end of each time in which flags are set, shape (moments,); short gaps do not end one."""
    edges = np.diff(np.concatenate(([0], flags.astype(np.int8), [0])))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    found: list[tuple[float, float]] = []
    for begin, end in zip(seconds[begins], seconds[ends], strict=True):
        if found and begin - found[-1][1] <= NEAR_S:
            found[-1] = found[-1][0], float(end)
        else:
            found.append((float(begin), float(end)))
    return found


def chance(change: Change, seen_s: float, looked_at: int, by_themselves: int, seen_of_all_s: float) -> float:
    """Probability that any condition changes like that at an onset, by chance alone.

    What this condition has done before counts in full; how often conditions do so at all is what is expected of one
    that never did.

    Args:
        change: That was found.
        seen_s: How long this condition was seen before.
        looked_at: Conditions in which a change would have been named.
        by_themselves: How often all conditions together became bad before.
        seen_of_all_s: How long these were seen, together.
    """
    rate = change.times_before / seen_s + max(by_themselves, 1) / max(seen_of_all_s, seen_s)
    return float(-np.expm1(-2 * change.near_s * rate * looked_at))
