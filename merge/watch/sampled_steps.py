"""Sampled steps, whose collectives all ranks logged: each rank's own time, and how long data moved.

All times are differences within a rank: clocks of ranks are never compared. A call that all ranks of a group take part
in ends on all of them at the same time, so the rank that arrived last spent the least time in it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from distprof.arrays import Floats
from distprof.contract.watch import UNKNOWN
from distprof.merge.watch.grid import places_of_age
from distprof.merge.watch.pieces import Sample

KEPT = 1024
"""Most sampled steps. Beyond it, all but the newest `KEPT` / 8 are joined."""
OPEN = 256
"""Most steps that wait for the samples of further ranks; beyond it, the oldest are dropped."""
CLIP = 5.0
"""Own times are clipped to within this many robust standard deviations of the recent median."""
RECENT = 31
"""Sampled steps from which that median is computed."""
FEWEST = 8
"""Fewest sampled steps from which it is computed. So many of the first ones are compared with those beside them: the
level may change between them."""
Group = tuple[str, tuple[int, ...], str]
"""A process group by torch's name and its ranks, and the operation of its first call in a step."""


class SampledSteps:
    """Sampled steps as arrays of shape (steps, ranks) or (steps, groups), in ns; nan where unknown."""

    def __init__(self) -> None:
        """Starts without steps."""
        self.step = np.empty(0, np.int64)
        self.weight = np.empty(0)
        """Number of sampled steps that were joined into each."""
        self.own = np.empty((0, 0))
        """Own time: the step time of a rank without the time it was blocked in calls."""
        self.span = np.empty((0, 0))
        self.calm = np.empty((0, 0))
        """Own time, clipped to the range that was usual at that time."""
        self.first = np.empty((0, 0))
        """From the start of the step until the rank arrived at its first call."""
        self.after = np.empty((0, 0))
        """From the end of the last call to the end of the step."""
        self.groups: list[Group] = []
        self.moving = np.empty((0, 0))
        """Time of the calls of a group from the arrival of the last rank to the end, summed over a step."""
        self.kind: list[tuple[Any, ...]] = []
        """For each rank, the calls that it makes in a step (`Calls.kind`): ranks of the same kind are peers."""
        self._open: dict[int, dict[int, Sample]] = defaultdict(dict)
        self._ranks: list[int] = []

    def add_rank(self, rank: int) -> None:
        """Adds a column for a rank, with nan for the past."""
        self._ranks.append(rank)
        self.kind.append(())
        for name in ("own", "span", "calm", "first", "after"):
            setattr(self, name, _widened(getattr(self, name)))

    def add(self, rank: int, samples: list[Sample]) -> None:
        """Takes new samples of a rank. Steps are left out if only some calls were logged, as in older versions, or if a
        device had not reached them in time: waits in the others would count as the rank's own time."""
        for sample in samples:
            arrived_ns = sample.step.arrived_ns
            if sample.step.num_calls == len(arrived_ns) and UNKNOWN not in arrived_ns:
                self._open[sample.step.step][rank] = sample

    def advance(self, until: int, present: set[int]) -> None:
        """Appends the steps before `until` that all ranks in `present` have sampled; drops the others before it."""
        recent, taken = list(self.own[-RECENT:]), []
        for step in sorted(step for step in self._open if step < until):
            of = self._open.pop(step)
            if present <= of.keys():
                taken.append((step, *self._taken(of, recent)))
        for step in sorted(self._open)[:-OPEN]:
            del self._open[step]
        if taken:
            self._append(taken)

    def _taken(self, of: dict[int, Sample], recent: list[Floats]) -> tuple[Floats, dict[Group, float]]:
        """Returns own, span, first, after and calm of a step, shape (5, ranks), and its moving times by group."""
        place = {rank: number for number, rank in enumerate(self._ranks)}
        calls = {rank: Calls(sample) for rank, sample in of.items()}
        moving = _matched(calls)
        row = np.full((5, len(self._ranks)), np.nan)
        for rank, mine in calls.items():
            row[:4, place[rank]] = mine.own(), mine.span, mine.first, mine.after
            self.kind[place[rank]] = mine.kind()
        row[4] = winsorized(row[0], np.array(recent[-RECENT:]).reshape(-1, len(self._ranks)))
        recent.append(row[0])
        return row, moving

    def _append(self, taken: list[tuple[int, Floats, dict[Group, float]]]) -> None:
        for group in sorted({group for _, _, moving in taken for group in moving} - set(self.groups)):
            self.groups.append(group)
            self.moving = _widened(self.moving)
        self.step = np.append(self.step, [step for step, _, _ in taken])
        self.weight = np.append(self.weight, np.ones(len(taken)))
        for place, name in enumerate(("own", "span", "first", "after", "calm")):
            setattr(self, name, np.vstack([getattr(self, name), [row[place] for _, row, _ in taken]]))
        moved = [[moving.get(group, np.nan) for group in self.groups] for _, _, moving in taken]
        self.moving = np.vstack([self.moving, np.array(moved).reshape(len(taken), len(self.groups))])
        if len(self.step) - len(taken) <= FEWEST < len(self.step):
            self.calm[:FEWEST] = winsorized_among_neighbours(self.own[:FEWEST + 1])
        if len(self.step) > KEPT:
            self._join()

    def _join(self) -> None:
        begins = places_of_age(self.weight, KEPT // 8)
        total = np.add.reduceat(self.weight, begins)
        share = self.weight / np.repeat(total, np.diff(np.append(begins, len(self.weight))))
        for name in ("own", "span", "calm", "first", "after", "moving"):
            setattr(self, name, np.add.reduceat(getattr(self, name) * share[:, None], begins, axis=0))
        self.step, self.weight = self.step[begins], total


class Calls:
    """The communication calls of a rank in a step; times in ns."""

    def __init__(self, sample: Sample) -> None:
        """Takes the calls from a sample."""
        step = sample.step
        self.sample, self.span = sample, float(step.span_ns)
        self.arrived, self.took = np.array(step.arrived_ns, float), np.array(step.took_ns, float)
        blocked = np.array(step.blocked_ns, float)
        self.still = np.where(blocked == UNKNOWN, self._free(), blocked)
        """Longest time that the thread can have been blocked in each call."""
        self.of: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
        for number, group in enumerate(step.group):
            name, ranks = sample.groups[group]
            self.of[name, tuple(ranks)].append(number)

    def _free(self) -> Floats:
        """Returns how long each call can have blocked: 0 if the rank issued another call before this one was over."""
        if not len(self.arrived):
            return self.took
        later = np.append(np.minimum.accumulate(self.arrived[::-1])[::-1][1:], np.inf)
        return np.where(later < self.arrived + self.took, 0.0, np.maximum(self.took, 0))

    def own(self) -> float:
        """Returns the step time without the time blocked in calls, in which the rank waits for others or data moves."""
        return self.span - float(np.minimum(np.maximum(self.took, 0), np.maximum(self.still, 0)).sum())

    @property
    def first(self) -> float:
        """From the start of the step to the arrival at the first call; nan without calls."""
        return float(self.arrived.min()) if len(self.arrived) else np.nan

    @property
    def after(self) -> float:
        """From the end of the last call to the end of the step; nan without calls."""
        return self.span - float((self.arrived + np.maximum(self.took, 0)).max()) if len(self.arrived) else np.nan

    def kind(self) -> tuple[Any, ...]:
        """Returns size, number of calls and first operation of each group: the same for ranks that do the same."""
        ops = self.sample.step.op
        return tuple(sorted((len(ranks), len(calls), self.sample.names[ops[calls[0]]])
                            for (_, ranks), calls in self.of.items()))


def _matched(calls: dict[int, Calls]) -> dict[Group, float]:
    """Returns the moving time of each group whose ranks all logged the same number of calls."""
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for rank, mine in sorted(calls.items()):
        for group in mine.of:
            groups[group].append(rank)
    moving = {}
    for (name, members), ranks in groups.items():
        places = [calls[rank].of[name, members] for rank in ranks]
        if len(members) < 2 or len(ranks) < len(members) or len({len(one) for one in places}) > 1:
            continue
        took = np.stack([calls[rank].took[one] for rank, one in zip(ranks, places, strict=True)])
        least = np.where((took == UNKNOWN).any(axis=0), 0.0, took).min(axis=0)
        sample = calls[ranks[0]].sample
        op = sample.names[sample.step.op[places[0][0]]]
        moving[name, members, op] = float(least.sum())
    return moving


def winsorized(own: Floats, recent: Floats) -> Any:
    """Removes outliers from own times of ranks in a step: of what they have in common, and of what each differs by.

    Args:
        own: Shape (ranks,).
        recent: Those of the steps before; shape (steps, ranks).
    """
    known = ~np.isnan(own)
    if len(recent) < FEWEST or np.isnan(recent[:, known]).all(axis=1).any():
        return own
    middle, middles = np.median(own[known]), np.nanmedian(recent[:, known], axis=1)
    usual = float(np.median(middles))
    return (clipped(np.array([middle]), middles[:, None], 0.01 * usual)
            + clipped(own - middle, recent - middles[:, None], 0.01 * usual))


def winsorized_among_neighbours(own: Floats) -> Any:
    """Removes single outliers: what differs too much from the moving median of three.

    Args:
        own: Own times; shape (steps, ranks); nan where unknown.

    Returns:
        Those of all steps but the last one; beside an unknown one they are unchanged.
    """
    number = np.arange(len(own) - 1)
    around = own[np.stack([np.abs(number - 1), number, np.where(number == 0, 2, number + 1)])]
    level = np.median(around, axis=0)
    off = own[:-1] - level
    found = level + clipped(off, off, 0.01 * float(np.nanmedian(own)))
    return np.where(np.isnan(found), own[:-1], found)


def clipped(values: Floats, recent: Floats, least: float) -> Floats:
    """Clips values to within `CLIP` robust standard deviations, or as many times `least`, of the recent median
    (winsorizing; Huber 1964)."""
    middle = np.median(recent, axis=0)  # nan for a rank that was not there all the time
    spread = 1.4826 * np.median(np.abs(recent - middle), axis=0)
    wide = CLIP * np.maximum(spread, least)
    return np.where(np.isnan(wide), values, np.fmin(np.fmax(values, middle - wide), middle + wide))


def _widened(values: Floats) -> Floats:
    return np.concatenate([values, np.full((len(values), 1), np.nan)], axis=1)
