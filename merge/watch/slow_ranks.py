"""Findings about ranks and hosts that stay slow (`slow_rank`, `slow_host`)."""

from __future__ import annotations

import numpy as np

from distprof.contract.watch_state import WatchFinding
from distprof.merge.watch import shifts
from distprof.merge.watch.everybody import MOST, compared
from distprof.merge.watch.late_ranks import (
    SEEN_IN_STEPS,
    Late,
    clusters,
    gained_by_fixing,
    growth,
    late_ranks,
    together_steps,
)
from distprof.merge.watch.onset import began, refined
from distprof.merge.watch.shifts import Series
from distprof.merge.watch.view import FEW, View

SURELY = 3.5
"""Standard errors that growth of communication, or of all ranks' work, must reach to be another explanation."""
SURE = 2.0
"""Standard errors by which steps must have grown, given that the rank's own time certainly did."""
COSTLY = 0.0125
"""Smallest cost to the job that is reported, as a share of a step."""
OTHERWISE = 0.8
"""If something else explains longer steps, a rank with a shift below this share of the growth is not blamed."""
CERTAIN = 9.0
"""If something else explains longer steps, a rank with a shift below this many standard errors is not blamed."""
PHASE = 0.5
"""Share of the rank's shift that a phase must show to be named, and of the growth of steps that another explanation
must show."""
MIRRORED = 0.25
"""Share of a rank's shift, compared with one or two others, by which its own time must have grown."""
Z95 = 1.96
"""Standard errors in half a 95 % interval."""


def slow_ranks(view: View) -> list[WatchFinding]:
    """Returns findings about all ranks and hosts that stay slow and cost the job something."""
    found: list[WatchFinding] = []
    near = together_steps(view.typical_ns)
    for some in clusters(view, [one for one in late_ranks(view) if not _is_mirrored(view, one)]):
        one = _finding(view, some)
        if one is not None and not any(other.ranks == one.ranks and _is_part(one, other, near) for other in found):
            found.append(one)
    return found


def _is_mirrored(view: View, late: Late) -> bool:
    """Returns whether a rank only seems slower beside one or two others, because these became faster, although steps
    did not become shorter: as if a rank that is late now and then were late more rarely."""
    every = [one for one in (view.own, view.sampled_own) if one is not None]
    # nan, and therefore not known to be mirrored, if nothing came before
    if late.from_start or len(view.ranks) > FEW or not all(
            _grown(one.column(late.place), late) < MIRRORED * late.shift_ns for one in every):
        return False
    before, after, error, error_after = growth(view.step_times, late.begin, late.end)
    return after - before > -SURE * float(np.hypot(error, error_after))


def _grown(series: Series, late: Late) -> float:
    before, after, *_ = growth(series, late.begin, late.end)
    return after - before


def _is_part(one: WatchFinding, other: WatchFinding, near: float) -> bool:
    """Returns whether a stretch is the same as an earlier one of these ranks, or lies in it: two estimates of an onset
    may be the same step once they are refined."""
    return abs(other.onset_step - one.onset_step) <= near or (
        other.onset_step <= one.onset_step and (other.until_step is None or one.onset_step <= other.until_step))


def _finding(view: View, some: list[Late]) -> WatchFinding | None:
    lead = some[0]
    if lead.from_start:
        return _from_start(view, some)
    onset, _ = refined(view, lead.begin, lead.slack, lead.place)
    end = None if lead.end is None else refined(view, lead.end, lead.slack, lead.place)[0]
    if end is not None and end <= onset:
        end = lead.end  # the end does not show in rows
    before, after, error, error_after = growth(view.step_times, onset, end)
    if after - before <= -SURE * np.hypot(error, error_after):
        return _by_samples(view, some, onset, end)  # steps became shorter for another reason, which hides the cost
    before, after, error, error_after = growth(view.adjusted_step_times.column(lead.place), onset, end)
    grown, doubt = after - before, float(np.hypot(error, error_after))
    if not (grown >= SURE * doubt and grown >= SEEN_IN_STEPS * lead.shift_ns and grown >= COSTLY * before):
        return None
    if grown > MOST * max(lead.shift_ns, _shift_ns(view, lead.place, onset, end)) + SURE * (doubt + lead.error_ns):
        return None  # a rank can make steps longer only by its own shift: this has another cause
    if (lead.shift_ns < OTHERWISE * grown or lead.shift_ns < CERTAIN * lead.error_ns) and (
            _explained_otherwise(view, grown, onset, end)):
        return None
    found = about(view, some, onset, end)
    found.before_ns, found.after_ns = before, after
    found.per_step_ns, found.per_step_error_ns = grown, Z95 * doubt
    return costed(view, found)


def _shift_ns(view: View, place: int, onset: float, end: float | None) -> float:
    """Returns by how much a rank's time compared with the others grew at the onset in rows: the search, which knows
    only blocks, may have taken some of the slow ones for normal ones."""
    if view.compared is None:
        return 0.0
    before, after, *_ = growth(view.compared.column(place), onset, end)
    return after - before


def _explained_otherwise(view: View, grown: float, onset: float, end: float | None) -> bool:
    """Returns whether communication, or the work of all ranks, grew by most of `grown` at the same time."""
    if view.moving is not None:
        moved, error = compared(view.moving, onset, end)
        if ((moved >= PHASE * grown) & (moved >= SURELY * error)).any():
            return True
    if view.sampled_own is None:
        return False
    own, error = compared(view.sampled_own, onset, end)
    return bool(np.median(own) >= PHASE * grown and np.median(own) >= SURELY * np.median(error))


def _from_start(view: View, some: list[Late]) -> WatchFinding | None:
    lead = some[0]
    first = int(began(view, lead.place, lead.shift_ns) or view.grid.blocks.first[0])
    end = None if lead.end is None else refined(view, lead.end, lead.slack, lead.place)[0]
    return _by_samples(view, some, first, end)


def _by_samples(view: View, some: list[Late], first: float, end: float | None) -> WatchFinding | None:
    """Returns a finding with the cost from sampled steps, where there are no comparable steps without the problem."""
    if view.passes_on:
        return None
    gain, error = gained_by_fixing(view, some, first, end)
    if not gain - 3 * error >= COSTLY * view.typical_ns:
        return None
    found = about(view, some, first, end)
    found.per_step_ns, found.per_step_error_ns = gain, Z95 * error
    return costed(view, found)


def about(view: View, some: list[Late], onset: float, end: float | None) -> WatchFinding:
    """Returns a finding with who is late, from when until when and in which phase, but without its cost."""
    places = sorted(one.place for one in some)
    ranks = [view.ranks[place] for place in places]
    hosts = sorted({view.hosts.get(rank, "") for rank in ranks})
    return WatchFinding(
        id="", kind="slow_host" if _is_host(view, ranks, hosts) else "slow_rank", ranks=sorted(ranks), hosts=hosts,
        onset_step=int(onset), onset_ns=view.time_of(onset), until_step=None if end is None else int(end) - 1,
        p=chance(some[0].strength, view), phase=_phase(view, some[0], onset, end))


def chance(strength: float, view: View) -> float | None:
    """Returns an upper bound of the probability that noise alone does this anywhere in the data: the normal tail times
    the number of windows (Bonferroni); None for a rank that was slow from the start."""
    if not np.isfinite(strength):
        return None
    tried = max(len(view.grid.blocks.first), 1) * max(len(view.ranks), 1) * 8
    return float(min(1.0, tried * np.exp(-strength * strength / 2)))


def costed(view: View, found: WatchFinding) -> WatchFinding:
    """Sets the cost so far, the number of steps since the onset times the cost per step, and returns the finding."""
    blocks = view.grid.blocks
    last = max(float(blocks.first[-1] + blocks.steps[-1]), view.num_steps)
    if found.until_step is not None:
        last = found.until_step + 1
    if found.per_step_ns is not None:
        found.cost_ns = found.per_step_ns * max(last - found.onset_step, 0)
    return found


def _is_host(view: View, ranks: list[int], hosts: list[str]) -> bool:
    if len(hosts) != 1 or len(ranks) < 2:
        return False
    there = {rank for rank in view.ranks if view.hosts.get(rank) == hosts[0]}
    return there == set(ranks) and len(there) < len(view.ranks)


def _phase(view: View, lead: Late, onset: float, end: float | None) -> str | None:
    """Returns the phase in which the rank became later than its peers, if phases contain no waits. If none of these
    phases shows it but own time does, it is backward."""
    names, blocks = view.own_phases, view.grid.blocks
    if not names or len(view.ranks) < 2:
        return None
    shift = {}
    for name in names:
        values = shifts.filled(blocks.field(name))
        mine = values[:, lead.place] - np.median(np.delete(values, lead.place, axis=1), axis=1)
        series = view.step_times
        at, until = series.place(onset), len(mine) if end is None else series.place(end)
        normal = 0.0 if lead.from_start or at < 1 else float(np.mean(mine[max(at - 4 * shifts.LEAST, 0):at]))
        shift[name] = float(np.mean(mine[at:max(until, at + 1)])) - normal
    most = max(shift, key=lambda name: shift[name])
    if shift[most] >= PHASE * lead.shift_ns:
        return most.removesuffix("_ns")
    sampled = view.sampled_compared
    if sum(shift.values()) > (1 - PHASE) * lead.shift_ns or sampled is None or len(names) < 3:
        return None
    grown, error = compared(sampled, onset, end)
    return "backward" if lead.from_start or grown[lead.place] >= 3 * error[lead.place] else None
