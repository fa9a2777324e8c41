"""Culprits: ranks that made others wait, with cause, cost and certainty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.blame.activities import Activity
from distprof.merge.blame.blame import Shares
from distprof.merge.blame.significance import p_values
from distprof.merge.blame.waiting import WaitingCosts

SURE = 0.01
"""Largest probability of chance with which a rank is called a culprit."""
MATERIAL = 0.02
"""Smallest share of a step with which a rank is called a culprit."""
OF_MODULES = ("forward", "backward", "recompute")
HALF = 0.5
"""A rank that waited less than this part of what another did is no victim."""
MOST_OF = 0.8
"""Share of a cause that the module which is named for it has to explain, and of a cost that its causes have to."""
NOTICEABLE = 0.3
"""Part of what a cause shall explain by which its time has to exceed that of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One thing that a rank spent more time on than the others."""

    kind: str
    """forward, backward, recompute, data, optimizer, host, annotation, batch; or unknown."""
    where: str | None
    """Module path; None for what is in none."""
    share: float
    """Its part of the rank's cost."""
    spent_ns: float | None = None
    """What the rank spends on it in a step."""
    median_ns: float | None = None
    """What the other ranks spend on it, in the median."""

    @property
    def ratio(self) -> float | None:
        """Its time over that of the median rank."""
        return self.spent_ns / self.median_ns if self.spent_ns is not None and self.median_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A rank that others waited for because of what it did itself."""

    rank: int
    victims: list[int]
    """Ranks that waited for it: those with at least half of what the one that waited longest did."""
    cost_ns: float
    """Exposed waiting a step that it caused, mean over the victims."""
    total_ns: float
    """The same summed over all ranks."""
    share: float | None
    """`cost_ns` as part of a step of the victims; None where steps are not known."""
    each_step_ns: list[float]
    """`cost_ns` of each step."""
    p_value: float | None
    """Probability that a rank of a balanced job stands out as much; None with too few steps."""
    explanations: list[Explanation]
    """The largest first."""

    @property
    def certain(self) -> bool:
        """True where chance is an unlikely explanation and the cost is material."""
        return (self.p_value is not None and self.p_value <= SURE and self.share is not None
                and self.share >= MATERIAL)


def culprits(costs: WaitingCosts, shares: Mapping[int, Shares], *, ranks: Sequence[int], steps: Sequence[int],
             step_ns: Mapping[int, float]) -> tuple[list[Culprit], dict[int, dict[int, float]]]:
    """Adds up what each rank cost the others.

    Receivers that wait for senders do not count: that is the bubble of every pipeline, however balanced.

    Args:
        costs: Exposed waiting.
        shares: Who answers for each collective.
        ranks: All that were there.
        steps: Those that count.
        step_ns: Mean time of a step by rank, where that is known.

    Returns:
        Ranks by cost, the largest first, without explanations; and by rank the cost of each activity a step, -1 where
        none is known.
    """
    parts = _parts(costs.where(costs.together), shares)
    if not len(parts) or not len(steps):
        return [], {}
    held = np.isin(parts[:, 0], ranks) & np.isin(parts[:, 2], steps)
    culprit, victim, step, activity, waited = parts[held].T
    rows, columns = np.searchsorted(ranks, culprit), np.searchsorted(steps, step)
    total = np.zeros((len(ranks), len(steps)))
    np.add.at(total, (rows, columns), waited)
    chances = p_values(total)
    found, by_activity = [], {}
    order = np.argsort(rows, kind="stable")
    known, firsts = np.unique(rows[order], return_index=True)
    for index, mine in zip(known.tolist(), np.split(order, firsts[1:]), strict=True):
        names, places = np.unique(activity[mine], return_inverse=True)
        by_activity[ranks[index]] = dict(zip(names.astype(int).tolist(), (
            np.bincount(places, waited[mine]) / len(steps)).tolist(), strict=True))
        by_victim = np.zeros((len(ranks), len(steps)))
        np.add.at(by_victim, (np.searchsorted(ranks, victim[mine]), columns[mine]), waited[mine])
        found.append(_culprit(ranks[index], by_victim, ranks, chances[index], step_ns))
    return sorted(found, key=lambda one: -one.total_ns), by_activity


def _parts(costs: WaitingCosts, shares: Mapping[int, Shares]) -> Any:
    """Rows of culprit, victim, step, activity and time: each wait is split among the causes of its collective."""
    numbers, places = np.unique(costs.collective, return_inverse=True)
    causes = [shares.get(number, {}) for number in numbers.tolist()]
    sizes = np.array([len(one) for one in causes], np.int64)
    table = np.array([(-1 if who is None else who, -1 if what is None else what, part)
                      for one in causes for (who, what), part in one.items()], float).reshape(-1, 3)
    wait = np.repeat(np.arange(len(places)), sizes[places])
    # of the rows of a wait the first is that of its collective's first cause
    firsts = np.cumsum(sizes) - sizes
    inside = np.arange(len(wait)) - np.repeat(np.cumsum(sizes[places]) - sizes[places], sizes[places])
    who, what, part = table[firsts[places[wait]] + inside].T
    victim = costs.rank[wait]
    # a share that leads back to the waiting rank goes to the other causes: no rank waits for itself
    part = part * (who != victim)
    whole = np.bincount(wait, part, len(places))[wait]
    time = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0) * costs.waited_ns[wait]
    return np.stack((who, victim, costs.step[wait], what, time), axis=-1)[(who >= 0) & (time > 0)]


def _culprit(rank: int, waited: Any, ranks: Sequence[int], chance: float,
             step_ns: Mapping[int, float]) -> Culprit:
    """From what each rank waited for it in each step."""
    means = waited.mean(axis=1)
    victims = np.flatnonzero(means >= means.max() * HALF)
    each = waited[victims].mean(axis=0)
    cost, names = float(each.mean()), [ranks[index] for index in victims.tolist()]
    steps = [step_ns[name] for name in names if step_ns.get(name)]
    return Culprit(rank=rank, victims=names, cost_ns=cost, total_ns=float(means.sum()),
                   share=cost / float(np.mean(steps)) if steps else None, each_step_ns=each.tolist(),
                   p_value=None if np.isnan(chance) else float(chance), explanations=[])


def explained(culprit: Culprit, costs: Mapping[int, float], known: Sequence[Activity],
              spent: Mapping[int, Mapping[Activity, float]]) -> list[Explanation]:
    """Explains the cost of a rank by what it spent more time on than the others.

    Where communication overlaps with work, what a rank was late by shows only at the last collective of a step, behind
    an activity that took as long on the others. Such an activity explains nothing: what took longer in the step does,
    where that is enough to explain the cost.

    Args:
        culprit: The rank and its cost.
        costs: Cost a step by number of the activity, -1 where none is known.
        known: Activities by number.
        spent: Time a step by rank and activity.
    """
    spent = _peers(spent, culprit.rank)
    found = _that_took_longer(explanations_of(costs, known, spent, culprit.rank), culprit.cost_ns)
    if sum(one.share for one in found if one.spent_ns is not None) >= MOST_OF or culprit.rank not in spent:
        return found
    longer = {number: time for number, activity in enumerate(known)
              if (time := _excess(activity, spent, culprit.rank)) > 0}
    if sum(longer.values()) < MOST_OF * culprit.cost_ns:
        return found
    return _that_took_longer(explanations_of(longer, known, spent, culprit.rank), culprit.cost_ns)


def _peers(spent: Mapping[int, Mapping[Activity, float]], rank: int) -> Mapping[int, Mapping[Activity, float]]:
    """The rank and those that run mostly the same modules; another stage of a pipeline is nothing to compare with."""
    modules = {other: {activity for activity in times if activity.kind in OF_MODULES and activity.where}
               for other, times in spent.items()}
    mine = modules.get(rank, set())
    return {other: spent[other] for other, theirs in modules.items() if 2 * len(mine & theirs) >= len(mine | theirs)}


def _that_took_longer(found: Sequence[Explanation], cost_ns: float) -> list[Explanation]:
    """Those without times, and those with an excess over the others that is a good part of what they shall explain."""
    return [one for one in found if one.spent_ns is None or one.median_ns is None
            or one.spent_ns - one.median_ns >= NOTICEABLE * one.share * cost_ns]


def _excess(activity: Activity, spent: Mapping[int, Mapping[Activity, float]], rank: int) -> float:
    others = [times.get(activity, 0.0) for other, times in spent.items() if other != rank]
    return spent[rank].get(activity, 0.0) - float(np.median(others)) if others else 0.0


def explanations_of(costs: Mapping[int, float], known: Sequence[Activity],
                    spent: Mapping[int, Mapping[Activity, float]], rank: int) -> list[Explanation]:
    """Explains the cost of a rank, for modules by the deepest one that holds most of it.

    Args:
        costs: Cost a step by number of the activity, -1 where none is known.
        known: Activities by number.
        spent: Time a step by rank and activity.
        rank: Whose cost it is.
    """
    by_kind: dict[str, dict[str | None, float]] = defaultdict(dict)
    for number, cost in costs.items():
        activity = known[number] if number >= 0 else Activity("unknown")
        by_kind[activity.kind][activity.where] = by_kind[activity.kind].get(activity.where, 0.0) + cost
    found, total = [], sum(costs.values())
    for kind, parts in by_kind.items():
        if kind in OF_MODULES:
            where = _deepest(_longer(kind, known, spent, rank) or parts)
        else:
            where = max(parts, key=lambda one: parts[one])
        mine = _time(spent.get(rank, {}), kind, where)
        others = [_time(times, kind, where) for other, times in spent.items() if other != rank]
        found.append(Explanation(kind=kind, where=where, share=sum(parts.values()) / total,
                                 spent_ns=mine if kind != "unknown" else None,
                                 median_ns=float(np.median(others)) if others and kind != "unknown" else None))
    return sorted(found, key=lambda one: -one.share)


def _longer(kind: str, known: Sequence[Activity], spent: Mapping[int, Mapping[Activity, float]],
            rank: int) -> dict[str | None, float]:
    """By how much a rank was longer in each activity of a kind than the others."""
    if rank not in spent:
        return {}
    each = {one.where: _excess(one, spent, rank) for one in known if one.kind == kind}
    return {where: time for where, time in each.items() if time > 0}


def _deepest(parts: Mapping[str | None, float]) -> str | None:
    """The deepest module in which most of it lies."""
    inside: dict[str, float] = defaultdict(float)
    for where, cost in parts.items():
        names = where.split(".") if where else []
        for depth in range(len(names) + 1) if where is not None else ():
            inside[".".join(names[:depth])] += cost
    # of two modules that hold more than half each, one lies in the other
    return max((path for path, cost in inside.items() if cost >= MOST_OF * sum(parts.values())), key=len, default=None)


def _is_in(where: str, path: str) -> bool:
    return not path or where == path or where.startswith(f"{path}.")


def _time(times: Mapping[Activity, float], kind: str, where: str | None) -> float:
    """Time of a module with those inside it, or of anything else that has a name."""
    if kind in OF_MODULES and where is not None:
        return sum(time for activity, time in times.items()
                   if activity.kind == kind and activity.where is not None and _is_in(activity.where, where))
    return sum(time for activity, time in times.items()
               if activity.kind == kind and (where is None or activity.where == where))
