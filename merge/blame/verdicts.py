"""Verdicts: what each rank costs the job, from replays without the excess of the rank over its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from distprof.arrays import Flags, Floats, Integers
from distprof.merge.activity.activities import Activity
from distprof.merge.blame.candidates import TOGETHER, Candidate, ReplayedJob, candidates
from distprof.merge.blame.causes import cause_of
from distprof.merge.blame.culprits import MATERIAL, SURE, Cause, Culprit
from distprof.merge.blame.excess import WHOLE, Excess
from distprof.merge.blame.processors import Processors
from distprof.merge.chance import chance, of_two_looks
from distprof.merge.program.job import Job
from distprof.merge.replay.replay import Relief

WORTH_A_WORD = 0.005
"""A rank is considered only if its excess, or what fixing it gains, is at least this fraction of a step."""
MOST_NAMED = 6
"""The search ends once this many of the ranks found may be chance. Beyond this many, only certain ones are returned."""
NOTICEABLE = 0.2
"""A cause is listed only if it accounts for at least this fraction of the gain."""
ALMOST_ALL = 0.8
"""A single kind of work is the cause if it accounts for at least this fraction of the largest gain, or the excess."""
HALF = 0.5
"""Ranks are delayed if they gain at least this fraction of what the rank that gains most does."""
LATE = 0.25
"""A step counts as late if its excess is at least this fraction of the rank's largest excess."""
REPLAY = 0.06
"""Error of replays as a fraction of the gain: nine in ten replays of simulated jobs were wrong by at most this, apart
from errors of clocks and of few steps."""
RARE = 0.2
"""A rank is late only at times if its mean excess in the other steps is at most this fraction of that in late steps."""
DEVIATIONS = 4
"""An excess in the other steps is not chance if its mean exceeds this many standard errors."""
MOST_OF_IT = 0.5
"""The processor is the cause if the thread waited for one for at least this fraction of the excess."""
UNTOLD = Processors()
"""Stands for unknown run queue times."""


class Verdicts:
    """Finds culprits one after the other, each given that those before it are fixed.

    Args:
        job: What ranks did.
        groups: Sets of peers, with the work of each rank and its excess over the others.
        known: Activities by number.
        steps: Steps that count.
        clock_ns: Error bound of the difference between the clocks of two ranks.
        processors: Run queue and CPU times of ranks, if the kernel reports them.
    """

    def __init__(self, job: Job, groups: Sequence[Excess], known: Sequence[Activity], steps: Sequence[int],
                 clock_ns: float, processors: Processors = UNTOLD) -> None:
        self._job, self._known, self._steps, self._clock_ns = job, known, steps, clock_ns
        self._processors = processors
        events, windows = job.graph.events, job.steps[np.isin(job.steps[:, 1], steps)]
        step_ns = np.mean(events.at_ns[windows[:, 3]] - events.at_ns[windows[:, 2]]) if len(windows) else 0.0
        self._left = candidates(job, groups, WORTH_A_WORD * float(step_ns))
        self._fixed = list[Relief]()
        self._beyond = {id(one): one.beyond.copy() for group in groups for one in (group, group.more)
                        if one is not None}

    def culprits(self) -> list[Culprit]:
        """Returns the culprits, those whose fixing gains most first."""
        found, fixed = list[Culprit](), list[tuple[Candidate, str] | None]()
        if self._left:
            self._replayed = ReplayedJob(self._job, self._steps)
            self._before = self._replayed.as_it_was
        # where many are late, each hides behind those that are not fixed
        while self._left and sum(map(_may_be_chance, found)) < MOST_NAMED:
            gains = self._gains()
            best = self._best(gains)
            if best is None:
                break
            one, each = self._left.pop(best), gains[best]
            means = self._means(one, each)
            chosen = self._chosen(one, means)
            found.append(self._culprit(one, chosen, means, each[chosen]))
            # what may be chance is not subtracted from what the next ones gain
            fixed.append(None if _may_be_chance(found[-1]) else (one, chosen))
            if fixed[-1] is not None:
                self._fix(one, chosen, each[chosen])
        every = self._with_last_gains(found, fixed)
        return [one for number, one in enumerate(every) if one.certain or number < MOST_NAMED]

    def _best(self, gains: Sequence[Mapping[str, Floats]]) -> int | None:
        """Returns the index of the candidate whose fixing gains most; None if none is worth mentioning."""
        most = [max(self._means(one, each).values()) for one, each in zip(self._left, gains, strict=True)]
        if max(most) < WORTH_A_WORD * self._before.mean():
            return self._best_of_all()
        return most.index(max(most))

    def _means(self, one: Candidate, gains: Mapping[str, Floats]) -> dict[str, float]:
        """Returns the mean gain of the ranks that a candidate meets, by scenario."""
        return {kind: self._replayed.mean(one.rank, gain) for kind, gain in gains.items()}

    def _best_of_all(self) -> int | None:
        """If no candidate alone is worth mentioning: returns the one missed most when all are fixed; None if even that
        gains little.

        If two ranks are late in groups of their own, fixing one gains nothing as long as the other is late.
        """
        reliefs = [one.scenarios[_all_of(one)] for one in self._left]
        without = [[relief for index, mine in enumerate(reliefs) if index != left for relief in mine]
                   for left in range(len(reliefs))]
        times = self._replayed.durations([[*self._fixed, *some] for some in ([one for mine in reliefs for one in mine],
                                                                             *without)])
        if (self._before - times[:, 0]).mean() < MATERIAL * self._before.mean():
            return None
        return int(np.argmax((times[:, 1:] - times[:, :1]).mean(axis=0)))

    def _with_last_gains(self, found: Sequence[Culprit],
                         fixed: Sequence[tuple[Candidate, str] | None]) -> list[Culprit]:
        """Adds what each fixed culprit would gain if it were fixed last."""
        if len(found) < 2:
            return list(found)
        others = [[relief for index, mine in enumerate(fixed) if index != left and mine is not None
                   for relief in mine[0].scenarios[mine[1]]] for left in range(len(fixed))]
        gains = self._replayed.durations(others) - self._before[:, None]
        return [culprit if mine is None else replace(culprit, last_gain_ns=self._replayed.mean(
            mine[0].rank, gains[:, index])) for index, (culprit, mine) in enumerate(zip(found, fixed, strict=True))]

    def _gains(self) -> list[dict[str, Floats]]:
        """Returns what each step of each rank would gain: for each candidate, by scenario."""
        names = [(index, kind) for index, one in enumerate(self._left) for kind in one.scenarios]
        times = self._replayed.durations([[*self._fixed, *self._left[index].scenarios[kind]] for index, kind in names])
        found: list[dict[str, Any]] = [{} for _ in self._left]
        for column, (index, kind) in enumerate(names):
            found[index][kind] = self._before - times[:, column]
        return found

    def _fix(self, one: Candidate, chosen: str, gain: Floats) -> None:
        self._fixed += one.scenarios[chosen]
        self._before = self._before - gain
        # what is fixed no longer counts when other ranks are tested
        names = {WHOLE: one.excess.kinds, TOGETHER: [*one.kinds, WHOLE]}.get(chosen, [chosen, WHOLE])
        for excess in (one.excess, one.excess.more):
            if excess is not None:
                self._beyond[id(excess)][one.row][:, [excess.kinds.index(name) for name in names]] = 0

    def _chosen(self, one: Candidate, means: Mapping[str, float]) -> str:
        """Returns the scenario that judges the rank: if ranks take turns on processors, the one least due to that."""
        chosen = _chosen(one, means)
        if not self._processors.by_turns_ratio(self._number(one)) or self._core(one, means[chosen]) is not None:
            return chosen
        sure = {kind: mean - self._by_turns_ns(one, kind) for kind, mean in means.items()}
        surest = max([chosen, *means], key=lambda kind: sure[kind])
        is_sure = sure[chosen] >= ALMOST_ALL * min(means[chosen], sure[surest])
        return chosen if is_sure else surest

    def _by_turns_ns(self, one: Candidate, scenario: str) -> float:
        """Returns how much a rank may exceed its peers in a kind of work due to turns on processors of its host."""
        if scenario == TOGETHER:
            return sum(self._by_turns_ns(one, kind) for kind in one.kinds)
        cause = None if scenario == "unknown" else cause_of(one.excess, one.row, scenario, self._known, 0.0)
        spent = float(one.excess.usual[one.row].sum()) if cause is None else cause.of_peers
        return self._processors.by_turns_ratio(self._number(one)) * spent

    def _doubt_ns(self, one: Candidate, scenario: str) -> float:
        """Returns that or, if larger, the rank's wait for a processor beyond that of others."""
        return max(self._by_turns_ns(one, scenario), self._processors.lacked_ns(self._number(one)))

    def _core(self, one: Candidate, gain_ns: float) -> Cause | None:
        """Returns the processor as cause if the thread waited for one for most of the rank's excess, else None."""
        number, processors = self._number(one), self._processors
        excess_ns = max(gain_ns, float(one.excess.beyond[one.row].mean(axis=0).max()))
        if processors.always_lacked_ns(number) < MOST_OF_IT * excess_ns:
            return None
        others = [rank for rank in processors.queued_ns if rank != number]
        return Cause(kind="core", where=None, gain_ns=gain_ns, spent=processors.share([number]),
                     of_peers=processors.share(others))

    def _number(self, one: Candidate) -> int:
        return int(self._job.ranks[one.rank])

    def _culprit(self, one: Candidate, chosen: str, means: Mapping[str, float], gain: Floats) -> Culprit:
        excess, meets = one.excess, self._replayed.meets(one.rank)
        main = WHOLE if chosen == WHOLE else max(one.kinds, key=lambda kind: means[kind])
        number = excess.kinds.index(main)
        late, core = excess.beyond[one.row, :, number], self._core(one, means[chosen])
        return Culprit(
            rank=self._number(one), delayed=self._delayed(gain, meets),
            step_ns=float(self._before[meets].mean()), gain_ns=means[chosen], last_gain_ns=means[chosen],
            gain_error_ns=self._error(one, number, means[chosen]),
            p_value=self._p_value(excess, one.row, main), num_peers=len(excess.beyond) - 1,
            excess_ns=late.tolist(),
            late_steps=late_steps_of(excess.steps[excess.counts], late, MATERIAL * float(self._before[meets].mean())),
            causes=self._causes(one, chosen, means) if core is None else [core],
            by_turns_ns=self._doubt_ns(one, chosen) if core is None else means[chosen] * self._processors.by_turns_part(
                self._number(one)))

    def _p_value(self, excess: Excess, row: int, kind: str) -> float | None:
        """Returns the p-value of the replayed steps and of more steps, if there are more. None if neither tells."""
        return of_two_looks(*(None if part is None or kind not in part.kinds else chance(
            self._beyond[id(part)], row, part.kinds.index(kind)) for part in (excess, excess.more)))

    def _delayed(self, gain: Floats, meets: Flags) -> list[int]:
        ranks, place = np.unique(self._replayed.rank[meets], return_inverse=True)
        each = np.bincount(place, gain[meets]) / np.bincount(place)
        return [int(self._job.ranks[rank]) for rank in ranks[each >= HALF * each.max()].tolist()]

    def _error(self, one: Candidate, kind: int, gain: float) -> float | None:
        """Combines errors: of the mean excess over few steps (as far as the gain shows it), of clocks and replays."""
        late = one.excess.beyond[one.row, :, kind]
        if len(late) < 2:
            return None
        spread = 2 * float(late.std(ddof=1)) / len(late) ** 0.5
        fixed = float(one.excess.to_fix[one.row, :, kind].mean())
        shows = min(gain / fixed, 1.0) if fixed > 0 else 1.0
        # whatever the clocks say, the gain lies between 0 and all that is fixed
        clock_ns = min(self._clock_ns, max(gain, fixed - gain))
        return float(np.linalg.norm((spread * shows, clock_ns, REPLAY * gain)))

    def _causes(self, one: Candidate, chosen: str, means: Mapping[str, float]) -> list[Cause]:
        worth = NOTICEABLE * max(means.values())
        kinds = sorted((kind for kind in one.kinds if means[kind] >= worth), key=lambda kind: -means[kind])
        # unknown work is listed as a cause only if there is no other
        kinds = [kind for kind in kinds if kind != "unknown"] or kinds
        kinds = [WHOLE, *kinds[:1]] if chosen == WHOLE else kinds
        found = [cause_of(one.excess, one.row, kind, self._known, means[kind]) for kind in kinds]
        return [cause for cause in found if cause is not None]


def _may_be_chance(one: Culprit) -> bool:
    """Returns whether chance or turns on processors explain its excess. The gain cannot tell: others may hide it."""
    is_late = one.is_its_own and float(np.mean(one.excess_ns)) - one.by_turns_ns >= MATERIAL * one.step_ns
    return one.p_value is not None and (one.p_value > SURE or (one.is_due_to_turns and not is_late))


def _all_of(one: Candidate) -> str:
    return next(kind for kind in (WHOLE, TOGETHER, *one.kinds) if kind in one.scenarios)


def _chosen(one: Candidate, means: Mapping[str, float]) -> str:
    """Returns the scenario that gains most, or a kind of work that gains nearly as much if no other kind is a cause.

    Beside another late rank, little is gained at first, whatever is fixed. Then one kind of work is the cause if it is
    almost all of the rank's excess over its peers, in the mean or in the median step.
    """
    most = max(means, key=lambda kind: means[kind])
    causes = [kind for kind in one.kinds if means[kind] >= NOTICEABLE * means[most]]
    if len(causes) == 1 and means[causes[0]] >= ALMOST_ALL * means[most]:
        return causes[0]
    # a single step may be long for another reason
    for beyond in (one.excess.beyond[one.row].mean(axis=0), np.median(one.excess.beyond[one.row], axis=0)):
        each = dict(zip(one.excess.kinds, beyond.tolist(), strict=True))
        main = max(causes, key=lambda kind: each[kind], default=most)
        is_main = main in one.kinds and main != "unknown" and each[main] >= ALMOST_ALL * each[WHOLE] > 0
        if is_main and means[main] >= HALF * means[most]:
            return main
    return most


def late_steps_of(steps: Integers, late: Floats, material_ns: float) -> list[int]:
    """Returns the steps in which a rank is late.

    These are all steps if the excess in the others is similar, or neither chance nor negligible, or if the rank has no
    excess in this kind of work in any step, but only together with other kinds.
    """
    if late.max() <= 0:
        return [int(step) for step in steps]
    is_late = late >= LATE * late.max()
    if len(rest := late[~is_late]):
        is_similar = rest.mean() > RARE * late[is_late].mean()
        # one step has no scatter that could be measured
        is_no_chance = len(rest) > 1 and rest.mean() > DEVIATIONS * rest.std(ddof=1) / len(rest) ** 0.5
        is_late[:] |= is_similar or (is_no_chance and rest.mean() >= material_ns)
    return [int(step) for step in steps[is_late]]
