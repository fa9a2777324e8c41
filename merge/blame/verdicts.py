"""Verdicts: what each rank costs the job, by replaying it without the excess of the rank over its peers."""

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
from distprof.merge.chance import chance
from distprof.merge.program.job import Job
from distprof.merge.replay.replay import Relief

WORTH_A_WORD = 0.005
"""Smallest share of a step that is mentioned."""
MOST_NAMED = 6
NOTICEABLE = 0.2
"""Smallest part of the gain that a cause is listed with."""
ALMOST_ALL = 0.8
"""From this part of the gain on, one kind of work is the cause."""
HALF = 0.5
"""Ranks that gain this part of what the one that gains most does are delayed."""
LATE = 0.25
"""Steps in which a rank exceeds its peers by this part of the most that it does are late."""
REPLAY = 0.06
"""Part of the gain by which replays of nine in ten simulated jobs were wrong at most, clocks and few steps aside."""
RARE = 0.2
"""Largest excess, as a part of that in late steps, which a rank that is late now and then has in the others."""
DEVIATIONS = 4
"""Standard errors beyond which an excess in those others is no chance."""
MOST_OF_IT = 0.5
"""Part of an excess for which the thread has to have waited for a processor, to be the cause."""
UNTOLD = Processors()


class Verdicts:
    """Finds culprits one after the other, each given that those in front of it are fixed.

    Args:
        job: What ranks did.
        groups: Peers, and by how much each exceeds the others.
        known: Activities by number.
        steps: Those that count.
        clock_ns: What the clocks of two ranks may differ by.
        processors: What ranks had of them, where kernels tell.
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
        """Those whose fixing would gain most first."""
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
            # what may be chance is not taken from what the next ones gain
            fixed.append(None if _may_be_chance(found[-1]) else (one, chosen))
            if fixed[-1] is not None:
                self._fix(one, chosen, each[chosen])
        every = self._with_last_gains(found, fixed)
        return [one for number, one in enumerate(every) if one.certain or number < MOST_NAMED]

    def _best(self, gains: Sequence[Mapping[str, Floats]]) -> int | None:
        """The candidate whose fixing gains most; None where nothing is worth a word."""
        most = [max(self._means(one, each).values()) for one, each in zip(self._left, gains, strict=True)]
        if max(most) < WORTH_A_WORD * self._before.mean():
            return self._best_of_all()
        return most.index(max(most))

    def _means(self, one: Candidate, gains: Mapping[str, Floats]) -> dict[str, float]:
        """The mean gain of the ranks that a candidate meets, by scenario."""
        return {kind: self._replayed.mean(one.rank, gain) for kind, gain in gains.items()}

    def _best_of_all(self) -> int | None:
        """Where nobody alone is worth a word: who would be missed most if all candidates were fixed, if that gains.

        Of two ranks that are late in groups of their own, fixing one gains nothing as long as the other is late.
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
        """Adds what each that is fixed would gain if it were fixed last."""
        if len(found) < 2:
            return list(found)
        others = [[relief for index, mine in enumerate(fixed) if index != left and mine is not None
                   for relief in mine[0].scenarios[mine[1]]] for left in range(len(fixed))]
        gains = self._replayed.durations(others) - self._before[:, None]
        return [culprit if mine is None else replace(culprit, last_gain_ns=self._replayed.mean(
            mine[0].rank, gains[:, index])) for index, (culprit, mine) in enumerate(zip(found, fixed, strict=True))]

    def _gains(self) -> list[dict[str, Floats]]:
        """What each step of each rank would gain, by candidate and scenario."""
        names = [(index, kind) for index, one in enumerate(self._left) for kind in one.scenarios]
        times = self._replayed.durations([[*self._fixed, *self._left[index].scenarios[kind]] for index, kind in names])
        found: list[dict[str, Any]] = [{} for _ in self._left]
        for column, (index, kind) in enumerate(names):
            found[index][kind] = self._before - times[:, column]
        return found

    def _fix(self, one: Candidate, chosen: str, gain: Floats) -> None:
        self._fixed += one.scenarios[chosen]
        self._before = self._before - gain
        # nobody is compared with what is fixed
        names = {WHOLE: one.excess.kinds, TOGETHER: [*one.kinds, WHOLE]}.get(chosen, [chosen, WHOLE])
        for excess in (one.excess, one.excess.more):
            if excess is not None:
                self._beyond[id(excess)][one.row][:, [excess.kinds.index(name) for name in names]] = 0

    def _chosen(self, one: Candidate, means: Mapping[str, float]) -> str:
        """The scenario by which the rank is judged: where ranks take turns on processors, the one least due to that."""
        chosen = _chosen(one, means)
        if not self._processors.by_turns_ratio(self._number(one)) or self._core(one, means[chosen]) is not None:
            return chosen
        sure = {kind: mean - self._by_turns_ns(one, kind) for kind, mean in means.items()}
        surest = max([chosen, *means], key=lambda kind: sure[kind])
        is_sure = sure[chosen] >= ALMOST_ALL * min(means[chosen], sure[surest])
        return chosen if is_sure else surest

    def _by_turns_ns(self, one: Candidate, scenario: str) -> float:
        """By how much a rank may exceed its peers in a kind of work as ranks of its host take turns on processors."""
        if scenario == TOGETHER:
            return sum(self._by_turns_ns(one, kind) for kind in one.kinds)
        cause = None if scenario == "unknown" else cause_of(one.excess, one.row, scenario, self._known, 0.0)
        spent = float(one.excess.usual[one.row].sum()) if cause is None else cause.of_peers
        return self._processors.by_turns_ratio(self._number(one)) * spent

    def _doubt_ns(self, one: Candidate, scenario: str) -> float:
        """The same, or what the rank lacked of a processor now and then, which may be all by which it is late."""
        return max(self._by_turns_ns(one, scenario), self._processors.lacked_ns(self._number(one)))

    def _core(self, one: Candidate, gain_ns: float) -> Cause | None:
        """The processor as cause, where the thread waited for one most of the time by which it exceeds its peers."""
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
        """By the steps that are replayed; where they are too few to tell, by more steps, at half the level."""
        found = [one for part in (excess, excess.more) if part is not None and kind in part.kinds and (
            one := chance(self._beyond[id(part)], row, part.kinds.index(kind))) is not None]
        return min((min(1.0, level * one) for level, one in enumerate(found, 1)), default=None)

    def _delayed(self, gain: Floats, meets: Flags) -> list[int]:
        ranks, place = np.unique(self._replayed.rank[meets], return_inverse=True)
        each = np.bincount(place, gain[meets]) / np.bincount(place)
        return [int(self._job.ranks[rank]) for rank in ranks[each >= HALF * each.max()].tolist()]

    def _error(self, one: Candidate, kind: int, gain: float) -> float | None:
        """That of the mean excess over few steps, as much of it as shows in the gain; of clocks; and of the replay."""
        late = one.excess.beyond[one.row, :, kind]
        if len(late) < 2:
            return None
        spread = 2 * float(late.std(ddof=1)) / len(late) ** 0.5
        fixed = float(one.excess.to_fix[one.row, :, kind].mean())
        shows = min(gain / fixed, 1.0) if fixed > 0 else 1.0
        # whatever clocks say, the gain lies between nothing and all that is fixed
        clock_ns = min(self._clock_ns, max(gain, fixed - gain))
        return float(np.linalg.norm((spread * shows, clock_ns, REPLAY * gain)))

    def _causes(self, one: Candidate, chosen: str, means: Mapping[str, float]) -> list[Cause]:
        worth = NOTICEABLE * max(means.values())
        kinds = sorted((kind for kind in one.kinds if means[kind] >= worth), key=lambda kind: -means[kind])
        # what is unknown is a cause where nothing else is
        kinds = [kind for kind in kinds if kind != "unknown"] or kinds
        kinds = [WHOLE, *kinds[:1]] if chosen == WHOLE else kinds
        found = [cause_of(one.excess, one.row, kind, self._known, means[kind]) for kind in kinds]
        return [cause for cause in found if cause is not None]


def _may_be_chance(one: Culprit) -> bool:
    """Where turns on processors explain its excess; of a rank that hides behind another, the gain tells nothing."""
    is_late = one.is_its_own and float(np.mean(one.excess_ns)) - one.by_turns_ns >= MATERIAL * one.step_ns
    return one.p_value is not None and (one.p_value > SURE or (one.is_due_to_turns and not is_late))


def _all_of(one: Candidate) -> str:
    return next(kind for kind in (WHOLE, TOGETHER, *one.kinds) if kind in one.scenarios)


def _chosen(one: Candidate, means: Mapping[str, float]) -> str:
    """The scenario that gains most; one kind of work, where that gains nearly as much and no other is a cause.

    Beside another late rank little is gained at first, whatever is fixed: there one kind is the cause that is almost
    all by which the rank exceeds its peers, in the mean or in the median step.
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
    """Those in which a rank is late; all of them where the excess in the others is no chance and no trifle, and where
    the rank exceeds its peers in none by itself, but together with others.
    """
    if late.max() <= 0:
        return [int(step) for step in steps]
    is_late = late >= LATE * late.max()
    if len(rest := late[~is_late]):
        is_similar = rest.mean() > RARE * late[is_late].mean()
        is_no_chance = rest.mean() > DEVIATIONS * rest.std() / len(rest) ** 0.5
        is_late[:] |= is_similar or (is_no_chance and rest.mean() >= material_ns)
    return [int(step) for step in steps[is_late]]
