"""Decides whether two things changed together, or at about the same time only by chance.

A condition goes along with a finding if it becomes worse at the finding's onset, stays worse for as long, and rarely
becomes worse otherwise: how often it does is counted in the data before the onset, on this host and on others. The
probability of a chance coincidence is that of a Poisson process with this rate (event coincidence analysis, Donges et
al. 2016), corrected for the number of conditions that were looked at (Bonferroni).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.arrays import Flags, Floats

MEDIAN_OF = 5
"""Moments in the moving median that removes noise; it keeps edges where they are."""
NEAR_S = 4.0
"""Largest distance between two onsets that coincide."""
END_RATIO = 0.1
"""Two ends coincide if they are no farther apart than this fraction of the duration, or than `NEAR_S`."""
BEFORE_S = (60.0, 600.0)
"""Shortest and longest time before the onset that is compared with; in between, it is as long as the duration."""
FEWEST_BEFORE, FEWEST_DURING = 30, 8
"""Fewest known moments before and during a change from which it is judged."""
WITH, WITHOUT = 0.8, 0.1
"""The condition must be worse in at least this share of the moments during the finding, and in at most this share of
those before."""
EVENTS_APART_S = (5.0, 25.0)
"""Bounds of the distance up to which successive errors belong to one condition."""
MEAN_GAPS = 6
"""That distance in mean distances of the errors. In a Poisson process, one of 400 gaps is longer."""
FEWEST_EVENTS = 4
"""Fewest moments with errors during the finding: fewer may happen by chance."""
FIRST_GAPS, FIRST_S = 2.0, 8.0
"""The first error may come this many mean distances after the onset of the finding, but at most this much time."""
CLOSE_S = 20.0
"""Time before and after the onset in which a jump, unlike a drift, shows fully."""
STEP_RATIO = 0.5
"""Share of a change that must come as a jump at the onset."""
LONG_RATIO = 0.5
"""An earlier episode counts if it lasted at least this fraction of the finding's duration."""
LONG_S = (6.0, 30.0)
"""Bounds of that duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A condition over time; larger is worse."""

    seconds: Floats
    """Time of each moment; shape (moments,), ascending."""
    values: Floats
    """Shape (moments,); NaN where unknown."""
    bad: float
    """Smallest value that can slow something down."""
    change: float
    """Smallest increase over the values before the onset that counts."""
    events: bool = False
    """Whether values are rates of single events, such as errors, of which each counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How a condition became worse."""

    before: float
    """Median before the onset; the mean, for events."""
    during: float
    """The same during the finding."""
    since_s: float
    """When the condition became worse, in the seconds of the series."""
    times_before: int
    """Number of earlier episodes."""
    near_s: float
    """Half the width of the window in which the onsets would have counted as a coincidence."""


def changed(series: Series, onset_s: float, until_s: float | None) -> Change | None:
    """Finds the change of a condition that begins at an onset and lasts as long as the finding.

    Args:
        series: The condition.
        onset_s: Onset of the finding, in the seconds of the series.
        until_s: End of the finding; None while it goes on.

    Returns:
        None if there is no such change.
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
    """Returns the change within `CLOSE_S` before and after the onset."""
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
    """Returns how long an episode must last to be comparable to one of this duration."""
    return min(max(LONG_RATIO * lasted_s, LONG_S[0]), LONG_S[1])


def times_by_itself(series: Series, before_s: float, least_s: float) -> int:
    """Counts how often a condition became bad before a moment.

    Args:
        series: The condition.
        before_s: The moment, in the seconds of the series.
        least_s: Shortest duration that counts.
    """
    known = ~np.isnan(series.values) & (series.seconds < before_s - NEAR_S)
    seconds, values = series.seconds[known], series.values[known]
    if len(values) < FEWEST_BEFORE:
        return 0
    limit = max(series.bad, float(np.median(values)) + series.change)
    if values.max() < limit and not series.events:  # quick return, as most conditions never become bad
        return 0
    return sum(end - begin >= least_s for begin, end in runs(seconds, _worse(series, seconds, values, limit)))


def _apart_s(seconds: Floats, rates: Floats) -> float:
    at = seconds[rates > 0]
    gap_s = (at[-1] - at[0]) / (len(at) - 1) if len(at) > 1 else np.inf
    return float(np.clip(MEAN_GAPS * gap_s, *EVENTS_APART_S))


def _worse(series: Series, seconds: Floats, values: Floats, limit: float, apart_s: float = EVENTS_APART_S[1]) -> Flags:
    """Returns where the condition exceeds a limit; for events, at each event and between those close to each other."""
    if not series.events:
        return np.asarray(smooth(values) >= limit)
    at = seconds[values > 0]
    if not len(at):
        return np.zeros(len(values), bool)
    after = np.searchsorted(at, seconds)
    previous = np.where(after > 0, at[np.maximum(after - 1, 0)], -np.inf)
    following = np.where(after < len(at), at[np.minimum(after, len(at) - 1)], np.inf)
    between = following - previous <= apart_s
    fresh = (previous >= seconds[-1] - apart_s) & (following == np.inf)  # more events may follow
    return np.asarray(between | (values > 0) | fresh)


def smooth(values: Floats) -> Floats:
    """Returns the moving median of `MEDIAN_OF` values, with the end values repeated; shape (moments,)."""
    half = MEDIAN_OF // 2
    if len(values) < MEDIAN_OF:
        return values
    padded = np.concatenate((np.full(half, values[0]), values, np.full(half, values[-1])))
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_OF), axis=1))


def runs(seconds: Floats, flags: Flags) -> list[tuple[float, float]]:
    """Returns begin and end of each stretch in which flags, shape (moments,), are set; gaps up to `NEAR_S` are
    closed."""
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
    """Returns the probability that any condition changes like this at an onset by chance alone.

    The expected rate is that of this condition's own earlier changes plus the mean rate of all conditions, which
    stands for one that never changed before.

    Args:
        change: The change that was found.
        seen_s: How long this condition was observed before the onset.
        looked_at: Number of conditions in which a change would have been named.
        by_themselves: How often all conditions together became bad before the onset.
        seen_of_all_s: How long these were observed, summed.
    """
    rate = change.times_before / seen_s + max(by_themselves, 1) / max(seen_of_all_s, seen_s)
    return float(-np.expm1(-2 * change.near_s * rate * looked_at))
