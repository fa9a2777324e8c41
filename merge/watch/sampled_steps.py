"""Steps whose collectives were logged on all ranks: how long each rank worked itself, and how long data moved.

All times are differences within a rank: clocks of ranks are not compared. Of a call that all ranks of a group take part
in, its end is the same on all of them, so that the rank that was last to come spent the least time in it.
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
"""Sampled steps; older ones are joined."""
OPEN = 256
"""Steps of which not all ranks have come."""
CLIP = 5.0
"""Standard deviations beyond which a single step counts as that many."""
RECENT = 31
Group = tuple[str, tuple[int, ...], str]
"""Torch's name, ranks and operation."""


class SampledSteps:
    """Arrays of (steps, ranks) and (steps, groups); nan where nothing is known."""

    def __init__(self) -> None:
        """None."""
        self.step = np.empty(0, np.int64)
        self.weight = np.empty(0)
        self.own = np.empty((0, 0))
        """Time of a rank outside of calls that it stood still for."""
        self.span = np.empty((0, 0))
        self.calm = np.empty((0, 0))
        """Own time, clipped to what was usual at that time."""
        self.first = np.empty((0, 0))
        """Arrival at the first call."""
        self.after = np.empty((0, 0))
        """From the end of the last call to the end of the step."""
        self.groups: list[Group] = []
        self.moving = np.empty((0, 0))
        """Time that calls of a group took from when the last rank came, summed over a step."""
        self.kind: list[tuple[Any, ...]] = []
        """Of each rank, what it does in a step: ranks of one kind are peers."""
        self._open: dict[int, dict[int, Sample]] = defaultdict(dict)
        self._ranks: list[int] = []

    def add_rank(self, rank: int) -> None:
        """A column more."""
        self._ranks.append(rank)
        self.kind.append(())
        for name in ("own", "span", "calm", "first", "after"):
            setattr(self, name, _widened(getattr(self, name)))

    def add(self, rank: int, samples: list[Sample]) -> None:
        """Of a rank."""
        for sample in samples:
            self._open[sample.step.step][rank] = sample

    def advance(self, until: int, present: set[int]) -> None:
        """Takes the steps before that one of which all ranks that are present came."""
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
        """Of one step: own, span, first, after and calm of all ranks, and moving times."""
        place = {rank: number for number, rank in enumerate(self._ranks)}
        calls = {rank: Calls(sample) for rank, sample in of.items()}
        moving = _matched(calls)
        row = np.full((5, len(self._ranks)), np.nan)
        for rank, mine in calls.items():
            row[:4, place[rank]] = mine.own(), mine.span, mine.first, mine.after
            self.kind[place[rank]] = mine.kind()
        row[4] = clipped(row[0], np.array(recent[-RECENT:]).reshape(-1, len(self._ranks)))
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
    """The calls of a rank in a step."""

    def __init__(self, sample: Sample) -> None:
        """As they were noted."""
        step = sample.step
        self.sample, self.span = sample, float(step.span_ns)
        self.arrived, self.took = np.array(step.arrived_ns, float), np.array(step.took_ns, float)
        blocked = np.array(step.blocked_ns, float)
        self.still = np.where(blocked == UNKNOWN, self._free(), blocked)
        """How long the thread can have stood still in each call."""
        self.of: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
        for number, group in enumerate(step.group):
            name, ranks = sample.groups[group]
            self.of[name, tuple(ranks)].append(number)

    def _free(self) -> Floats:
        """Who issues another call before this one is over did not stand still for it."""
        if not len(self.arrived):
            return self.took
        later = np.append(np.minimum.accumulate(self.arrived[::-1])[::-1][1:], np.inf)
        return np.where(later < self.arrived + self.took, 0.0, np.maximum(self.took, 0))

    def own(self) -> float:
        """The step without what it stood still for in calls: neither waits for others nor moving."""
        return self.span - float(np.minimum(np.maximum(self.took, 0), np.maximum(self.still, 0)).sum())

    @property
    def first(self) -> float:
        """When it came to its first call."""
        return float(self.arrived.min()) if len(self.arrived) else np.nan

    @property
    def after(self) -> float:
        """What is left of the step behind its last call."""
        return self.span - float((self.arrived + np.maximum(self.took, 0)).max()) if len(self.arrived) else np.nan

    def kind(self) -> tuple[Any, ...]:
        """Ranks that do the same in a step have the same."""
        ops = self.sample.step.op
        return tuple(sorted((len(ranks), len(calls), self.sample.names[ops[calls[0]]])
                            for (_, ranks), calls in self.of.items()))


def _matched(calls: dict[int, Calls]) -> dict[Group, float]:
    """Moving times of groups all of whose ranks tell as many calls."""
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


def clipped(values: Floats, recent: Floats) -> Floats:
    """Values, at most `CLIP` robust standard deviations from the recent median (Huber 1964: winsorized)."""
    if len(recent) < 8:
        return values
    middle = np.median(recent, axis=0)  # nan of a rank that was not there all the time
    spread = 1.4826 * np.median(np.abs(recent - middle), axis=0)
    wide = CLIP * np.maximum(spread, 0.01 * middle)
    return np.where(np.isnan(wide), values, np.fmin(np.fmax(values, middle - wide), middle + wide))


def _widened(values: Floats) -> Floats:
    return np.concatenate([values, np.full((len(values), 1), np.nan)], axis=1)
