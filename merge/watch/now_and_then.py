"""Findings about intermittent problems, with their periods: ranks that are slow in some steps, data stalls, pauses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from distprof.arrays import Flags, Floats, Integers
from distprof.contract.watch_state import FindingKind, WatchFinding
from distprof.merge.chance import median_of_others
from distprof.merge.watch.grid import FIELDS, medians
from distprof.merge.watch.long_steps import PHASES, LongSteps
from distprof.merge.watch.rhythm import period
from distprof.merge.watch.slow_ranks import costed
from distprof.merge.watch.state import at_once
from distprof.merge.watch.view import FEW, MATERIAL, View

FAR = 6.0
"""A step of a rank is slow if it exceeds the rank's median by more than this many robust standard deviations."""
LEAST = 0.05
"""A step of a rank is slow if it exceeds the rank's median by more than this share of a step."""
SURE = 1e-6
"""Largest probability with which chance alone gives a rank that many more episodes than the other ranks (Poisson)."""
EPISODES = 5
"""Fewest episodes: runs of slow steps."""
MOST = 0.7
"""A rank that is slow in more than this share of the steps is a slow rank, not an intermittent one."""
APART = 5.0
"""Two classes of steps must differ by this many of their inner standard deviations; the halves of a normal
distribution differ by 2.6."""
ALMOST_ALL = 0.7
"""Share of a cost, or of steps, that counts as nearly all of it."""
IN_A_ROW = 4
"""Long steps that different ranks recorded at most this many steps apart are one."""
RARE = 3
"""Fewest long steps of one kind that make a finding."""
COSTLY = 0.002
"""Share of the watched time that long steps of one kind must have cost."""
EVERYBODY = 0.7
"""Share of the ranks that counts as all of them."""
FULL = 0.75
"""Share of the times at which a periodic event is due at which it must have happened, as every long step is known."""


@dataclass(slots=True, kw_only=True)
class _Often:
    """A rank that is slow in some steps, with the rows that show it."""

    finding: WatchFinding
    rows: Integers | None = None
    """First steps of the rows in which it is slow; None if rows do not show it."""
    size: float = 0.0
    """Median number of steps of a row."""

    def seen_in_rows(self, step: Integers, size: Floats, hits: Flags, by_rows: WatchFinding) -> None:
        """Takes the period and the cost from rows, which cover every step, if the slow rows account for nearly all of
        the slow steps. Of steps that are rarely slow, few are sampled."""
        inside = step >= self.finding.onset_step
        if size[inside & hits].sum() >= ALMOST_ALL * (self.finding.share or 0) * size[inside].sum():
            self.finding.per_step_ns, self.finding.cost_ns = by_rows.per_step_ns, by_rows.cost_ns
            self.rows, self.size = step[hits], float(np.median(size))
            self.finding.period_steps = _rhythm(step[inside], self.size, hits[inside]) or self.finding.period_steps

    def explains(self, steps: Sequence[int]) -> bool:
        """Returns whether nearly all of these steps are in the slow rows, or next to them."""
        if self.rows is None:
            return False
        place = np.clip(np.searchsorted(self.rows, steps), 1, len(self.rows) - 1)
        apart = np.minimum(np.abs(self.rows[place] - steps), np.abs(self.rows[place - 1] - steps))
        return bool((apart <= 2 * self.size).mean() >= ALMOST_ALL)


def now_and_then(view: View, known: Iterable[WatchFinding], before: Iterable[WatchFinding],
                 events: LongSteps) -> list[WatchFinding]:
    """Returns findings about intermittent problems. One that both rows and single long steps show is reported once.

    Args:
        view: The job.
        known: Findings about ranks that stay slow.
        before: Those of earlier searches.
        events: Single long steps.
    """
    often, single = intermittent(view, known, before), list(long_steps(view, events))
    for one in often:
        about = one.finding
        same = [other for _, other in single if other.ranks == about.ranks]
        for other in same:
            if other.kind == "pauses" and not other.why and (other.cost_ns or 0) < (about.cost_ns or 0):
                # long steps underestimate the cost: of several slow steps in a row of steps, only the longest is known
                other.per_step_ns, other.cost_ns = about.per_step_ns, about.cost_ns
        # a pause is not caused by the rank's work; and single long steps that have nearly all of the cost are more
        # exact
        noted = [other for steps, other in single if other.kind == "pauses" and other.why and one.explains(steps)]
        if any(other.kind == "pauses" for other in same) or (
                sum(other.cost_ns or 0 for other in (*same, *noted)) >= ALMOST_ALL * (about.cost_ns or 0)):
            continue
        about.phase = about.phase or next((other.phase for other in same), None)
        single = [(steps, other) for steps, other in single if other not in same and not (
            other.kind == "pauses" and not other.why and one.explains(steps))]
        single.append(((), about))
    return [one for _, one in single]


def intermittent(view: View, known: Iterable[WatchFinding], before: Iterable[WatchFinding]) -> list[_Often]:
    """Finds ranks that are slow in some of the steps, far more often than the others.

    Args:
        view: The job.
        known: Findings about ranks that stay slow, which are not looked at here.
        before: Such findings of earlier searches.
    """
    known = list(known)
    taken = {rank for one in known for rank in one.ranks}
    found: dict[int, _Often] = {}
    for step, size, own in (_in_samples(view), _in_rows(view)):
        if own is None or len(step) < 4 * EPISODES:
            continue
        compared = own - median_of_others(_without(view, [*known, *before], step, own).T).T
        for place, hits in _often(own, compared, view.typical_ns):
            rank, one = view.ranks[place], _coming_and_going(view, place, step, size, compared[:, place], hits)
            if rank not in taken | found.keys():
                found[rank] = _Often(finding=one)
            if rank in found and step is view.grid.first:
                found[rank].seen_in_rows(step, size, hits, one)
    return [one for one in found.values() if (one.finding.per_step_ns or 0) >= MATERIAL / 2 * view.typical_ns]


def _without(view: View, known: list[WatchFinding], step: Integers, own: Floats) -> Floats:
    """Returns the values with NaN where a rank is known to be slow: the others would seem fast beside it, and slow
    before and after."""
    kept = own.copy()
    for one in known:
        inside = (step >= one.onset_step) & (step <= (np.inf if one.until_step is None else one.until_step))
        kept[np.ix_(inside, np.isin(view.ranks, one.ranks))] = np.nan
    return kept


def split(view: View, slow: list[WatchFinding]) -> list[WatchFinding]:
    """Returns the findings about slow ranks; a rank that is slow in some sampled steps and normal in the others becomes
    intermittent."""
    for one in slow:
        _split(view, one)
    # one intermittent rank may have several findings at once, as its mean lies between two levels: the costliest stays
    return [one for one in slow if one.kind != "intermittent" or one is max(
        (other for other in slow if other.kind == one.kind and other.ranks == one.ranks and at_once(one, other)),
        key=lambda other: other.per_step_ns or 0)]


def _split(view: View, found: WatchFinding) -> None:
    step, _, own = _in_samples(view)
    if found.kind != "slow_rank" or len(found.ranks) != 1 or own is None:
        return
    place = list(view.ranks).index(found.ranks[0])
    compared = (own - median_of_others(own.T).T)[:, place]
    inside = (step >= found.onset_step) & (step <= (np.inf if found.until_step is None else found.until_step))
    some, before = compared[inside], compared[step < found.onset_step]
    if len(some) < 4 * EPISODES:
        return
    edge = _edge(some)
    hits = some > edge
    apart = some[hits].mean() - some[~hits].mean()
    within = np.sqrt((some[hits].var() * hits.sum() + some[~hits].var() * (~hits).sum()) / len(some))
    normal = np.median(before) if len(before) >= EPISODES else 0.0
    if hits.sum() >= EPISODES and hits.mean() <= MOST and apart >= APART * within and (
            abs(some[~hits].mean() - normal) <= apart / 4):
        found.kind, found.share = "intermittent", float(hits.mean())
        found.period_steps = period(step[inside][hits], step[inside][~hits])
        # blocks do not measure this cost: rows with a slow step may have fewer steps than others
        span = np.median(view.sampled.span[view.sampled.weight == 1][inside], axis=1)
        found.per_step_ns = max(0.0, float(hits.mean() * (np.median(span[hits]) - np.median(span[~hits]))))
        costed(view, found)


def _edge(values: Floats) -> float:
    """Returns the threshold between two classes with the least variance within them (Otsu 1979)."""
    ordered = np.sort(values)
    number = np.arange(1, len(ordered))
    total = np.cumsum(ordered)[:-1]
    gap = total / number - (ordered.sum() - total) / (len(ordered) - number)
    place = int(np.argmax(number * (len(ordered) - number) * gap * gap))
    return float((ordered[place] + ordered[place + 1]) / 2)


def _in_samples(view: View) -> tuple[Integers, Floats, Any]:
    sampled = view.sampled
    fine = (sampled.weight == 1) & np.isfinite(sampled.own).all(axis=1)  # a rank may have come later
    own = sampled.own[fine]
    return sampled.step[fine], sampled.weight[fine], own if len(view.ranks) > 1 and len(own) else None


def _in_rows(view: View) -> tuple[Integers, Floats, Any]:
    if len(view.ranks) < 2 or not view.own_phases:
        return view.grid.first, view.grid.count, None
    own = sum(view.grid.rows[:, :, FIELDS.index(name)].astype(float) for name in view.own_phases)
    return view.grid.first, view.grid.count, own


def _often(own: Floats, compared: Floats, typical_ns: float) -> list[tuple[int, Flags]]:
    """Returns the columns of ranks that are late far more often than the others, and in which steps they are.

    Args:
        own: Own times; shape (steps, ranks).
        compared: The same, minus the median of the other ranks.
        typical_ns: Step time.
    """
    middle = _medians(compared)
    # from the half below the median: a rank that is often late must not hide itself by a large spread
    below = _medians(np.maximum(middle - compared, 0) * 2)
    wide = 1.4826 * _medians(np.abs(compared - middle))
    spread = np.minimum(np.where(below > 0, np.maximum(below, 0.5 * wide), wide), wide)
    spread = np.maximum(spread, _medians(spread))
    excess = compared - middle
    hits = excess > np.maximum(FAR * spread, LEAST * typical_ns)
    if compared.shape[1] <= FEW:  # where one of them is often late, another seems late where that one is not
        hits &= own - _medians(own) > 0.5 * excess
    episodes = (hits[1:] & ~hits[:-1]).sum(axis=0) + hits[0]
    # with two ranks, each is compared only with the other one, which is the median of the others
    others = (episodes.sum() - episodes) / max(len(episodes) - 1, 1)
    p = _at_least(episodes, others + 0.5) * len(episodes)
    return [(int(place), hits[:, place]) for place in np.flatnonzero((p < SURE) & (episodes >= EPISODES))]


def _medians(values: Floats) -> Any:
    """Returns medians over the first axis, ignoring nan."""
    return medians(values.T.reshape(-1, len(values), 1))[:, 0]


def _at_least(number: Integers, mean: Floats) -> Floats:
    """Returns an upper bound of the probability of at least `number` events if `mean` are expected (Chernoff bound of
    the Poisson distribution)."""
    size = np.maximum(number, 1e-9)
    return np.where(number > mean, np.exp(number - mean + number * np.log(mean / size)), 1.0)


def _coming_and_going(view: View, place: int, step: Integers, size: Floats, compared: Floats,
                      hits: Flags) -> WatchFinding:
    at, width = np.flatnonzero(hits), float(np.median(size))
    begins, rhythm = _begins(hits), _rhythm(step, width, hits)
    first = _begin(begins, step, rhythm)
    onset = int(step[first])
    last = int(step[at[-1]])
    gap = float(np.diff(at).max()) if len(at) > 1 else 1.0
    over = len(hits) - 1 - at[-1] > 3 * gap + 10
    since = slice(first, int(at[-1]) + 1 if over else None)
    share = float(hits[since].mean())
    # rows end after a time, so rows with slow steps have fewer steps than the others
    more = np.average(np.where(hits, compared - np.nanmedian(compared[~hits]), 0)[since], weights=size[since])
    rank = view.ranks[place]
    return costed(view, WatchFinding(
        id="", kind="intermittent", ranks=[rank], hosts=[view.hosts.get(rank, "")], onset_step=onset,
        onset_ns=view.time_of(onset), until_step=last if over else None, per_step_ns=float(more),
        share=share if width == 1 else None, period_steps=rhythm, p=SURE))


def _begins(hits: Flags) -> Integers:
    """Returns the indices at which runs of hits begin."""
    return np.flatnonzero(hits & ~np.append(False, hits[:-1]))


def _rhythm(step: Integers, width: float, hits: Flags) -> float | None:
    """Returns the period of the slow rows, of `width` steps each; or, if they have none and many are consecutive, the
    period in which these bursts start.
    """
    begins, within = _begins(hits), width if width > 1 else 0.0
    found = period(step[hits], step[~hits], within)
    return period(step[begins], (), within) if found is None and len(begins) <= 0.6 * hits.sum() else found


def _begin(episodes: Integers, step: Integers, rhythm: float | None) -> int:
    """Returns the first episode of the problem; earlier ones that are far from it were something else."""
    if rhythm is not None:
        turn = np.exp(2j * np.pi * step[episodes] / rhythm)
        episodes = episodes[np.abs(np.angle(turn / turn.mean())) < np.pi / 4]
    gaps = np.diff(episodes)
    far = np.flatnonzero(gaps > 5 * np.median(gaps) + 5)
    far = far[far < len(gaps) / 2]
    return int(episodes[far[-1] + 1] if len(far) else episodes[0])


def long_steps(view: View, events: LongSteps) -> Iterator[tuple[tuple[int, ...], WatchFinding]]:
    """Yields the steps and the finding of each kind of stall, pause and hiccup, separately for the ranks that cause
    it."""
    kinds: dict[tuple[str, str | None, tuple[int, ...]], list[tuple[int, float]]] = defaultdict(list)
    limit = max(view.grid.frontier(), 0)
    for step, of in _together(events.of):
        if step < limit:
            kind, phase, ranks = _what(view, events, step, of)
            if kind == "pauses" and phase is None and 2 * len(of) < len(view.ranks):
                continue  # a pause of the job is long on all ranks; this may be a late rank that recorded nothing
            kinds[kind, phase, ranks].append((step, float(np.median([one[0] for one in of.values()]))))
    for (kind, phase, ranks), steps in _turns(kinds).items():
        if len(steps) >= RARE and (one := _of_steps(view, kind, phase, ranks, steps)) is not None:
            yield tuple(step for step, _ in steps), one


def _together(every: dict[int, dict[int, Any]]) -> Iterator[tuple[int, dict[int, Any]]]:
    """Yields long steps with what ranks recorded of them. Of several long steps in a row of steps, each rank records
    its longest, which need not be the same on all ranks.
    """
    held: tuple[int, dict[int, Any]] | None = None
    for step, of in sorted(every.items()):
        if held is not None and step - held[0] <= IN_A_ROW and not held[1].keys() & of.keys():
            held[1].update(of)
            continue
        if held is not None:
            yield held
        held = step, dict(of)
    if held is not None:
        yield held


def _what(view: View, events: LongSteps, step: int, of: dict[int, Any]) -> tuple[str, str | None, tuple[int, ...]]:
    """Returns the kind of a long step, its phase (or the name of a pause), and the ranks that cause it (none: all)."""
    if (noted := events.note_near(step)) is not None:
        return "pauses", noted, ()
    excess = float(np.median([one[0] for one in of.values()]))
    collected = [rank for rank, one in of.items() if one[2] >= 0.5 * excess]
    if collected:
        return "pauses", "gc", tuple(sorted(collected)) if len(collected) < EVERYBODY * len(view.ranks) else ()
    own = [place for place, name in enumerate(PHASES) if name in view.own_phases or len(view.ranks) == 1]
    makes = [rank for rank, one in of.items() if own and one[1][own].sum() >= 0.5 * excess]
    if not makes or len(makes) >= EVERYBODY * len(view.ranks):
        return "pauses", None, ()
    phase = PHASES[own[int(np.argmax(sum(of[rank][1][own] for rank in makes)))]].removesuffix("_ns")
    return "data_stall" if phase == "data" else "intermittent", phase, tuple(sorted(makes))


def _turns(kinds: dict[Any, list[tuple[int, float]]]) -> dict[Any, list[tuple[int, float]]]:
    """Joins data stalls that hit different ranks in turn into one kind with all of these ranks."""
    single = [key for key in kinds if key[0] == "data_stall"]
    if len(single) < 3:
        return kinds
    ranks = tuple(sorted({rank for key in single for rank in key[2]}))
    joined = {key: steps for key, steps in kinds.items() if key not in single}
    return {**joined, ("data_stall", "data", ranks): sorted(step for key in single for step in kinds[key])}


def _of_steps(view: View, kind: FindingKind, phase: str | None, ranks: Sequence[int],
              steps: list[tuple[int, float]]) -> WatchFinding | None:
    number, excess = np.array([step for step, _ in steps]), sum(more for _, more in steps)
    blocks = view.grid.blocks
    if not len(blocks.first) or excess < COSTLY * (blocks.end_ns[-1] - blocks.end_ns[0]):
        return None
    rhythm = period(number)
    gaps = {after - before for before, after in pairwise(number.tolist())}
    if rhythm is not None and len(number) < FULL * ((number[-1] - number[0]) / rhythm + 1):
        rhythm = None  # a fraction of the true period, which one more event by chance fits as well
    if rhythm is None and len(gaps) == 1:
        rhythm = float(gaps.pop())
    if kind != "pauses" and tuple(ranks) == (view.ranks[0],) and rhythm is not None:
        kind, phase = "pauses", None  # what the first rank does at exact intervals is taken for checkpoints
    end = float(blocks.first[-1] + blocks.steps[-1])
    since = max(end - int(number[0]), 1.0)
    return WatchFinding(
        id="", kind=kind, ranks=list(ranks), hosts=sorted({view.hosts.get(rank, "") for rank in ranks}),
        onset_step=int(number[0]), onset_ns=view.time_of(int(number[0])), per_step_ns=excess / since, cost_ns=excess,
        share=len(number) / since, period_steps=rhythm,
        phase=phase if kind != "pauses" else None, why=[] if kind != "pauses" or phase is None else [phase])
