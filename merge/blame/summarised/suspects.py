"""Finds the ranks that delay a job in the summaries of all of its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.tables import MODULES
from distprof.merge.activity.activities import Activity
from distprof.merge.blame.culprits import AMOUNTS, MATERIAL, SURE, Blind, Cause, Culprit, more_data
from distprof.merge.blame.excess import WHOLE, Excess
from distprof.merge.blame.processors import CrowdedHost, Processors
from distprof.merge.blame.summarised.arrays import Peers, RankArrays, rank_arrays
from distprof.merge.blame.summarised.causes import sketched_causes
from distprof.merge.blame.summarised.timed import Timed
from distprof.merge.blame.summarised.waited_for import WaitedFor, Waits
from distprof.merge.blame.verdicts import ALMOST_ALL, MOST_NAMED, late_steps_of
from distprof.merge.chance import chance_of_any
from distprof.merge.levels.level_run import LevelRun

WORTH_A_LOOK = MATERIAL / 2
"""Smallest excess, as a share of a step, that is looked at."""
MOST_LOOKED_AT = 64
"""Ranks that are, those with the largest excess."""
STANDS_STILL = 0.05
"""Part of the time of calls for which threads are known to wait, from which on that says who waits for whom."""
ROUNDS = 3
"""In which ranks that were found late are no longer what others are compared with."""
MOST_NEAR = 256
"""Peers of a rank among which some with folders are looked for, twice counted."""
SKETCHED = 0.15
"""Part of a gain by which one that summaries show is wrong in nine of ten simulated jobs at most."""
MOST_OF_IT = 0.5
"""Part of an excess for which the thread has to have waited for a processor, to be the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarised:
    """Who delays a job, as summaries of its ranks show it."""

    culprits: list[Culprit]
    """By what the job gains when one after the other is fixed."""
    blind: Blind | None
    crowded: list[CrowdedHost]
    num_ranks: int
    """Ranks whose summaries were looked at."""
    left_out: Sequence[int]
    """Ranks whose summaries lack steps or communication."""
    compared: dict[int, list[int]]
    """Culprit -> peers whose tables may show the same in full: those next to the median work, and those with least, by
    turns."""
    tables: Sequence[int] = ()
    """Ranks whose tables were looked at again."""


@dataclass(slots=True, kw_only=True)
class Suspect:
    """A rank that works longer than its peers."""

    place: int
    """In `RankArrays.ranks`."""
    peers: Peers
    excess: Excess
    row: int
    """Among its peers."""
    kind: int
    """Of the work that it is judged by."""
    by_ns: float
    p_value: float = 1.0


def culprits_of(level: LevelRun) -> Summarised:
    """Finds the ranks that delay a job.

    Args:
        level: Its ranks, with what they spent on all kinds of activities.
    """
    assert level.run.summaries is not None
    arrays = rank_arrays(level)
    processors = Processors.of(arrays.windows, {rank.number: rank.host for rank in level.run.ranks})
    compared = [one for one in arrays.peers if len(one.rows) > 1]
    blind = _blind(level, arrays, has_peers=bool(compared))
    found = [] if blind is not None else _Verdicts(
        arrays, compared, processors, Timed(level.run.summaries.tables[MODULES.file], level.steps, arrays.ranks),
        _amounts(arrays)).culprits()
    return Summarised(culprits=[one for one, _ in found], blind=blind, crowded=processors.crowded(),
                      num_ranks=len(arrays.ranks), left_out=arrays.left_out,
                      compared={one.rank: _near(arrays, suspect) for one, suspect in found})


def _blind(level: LevelRun, arrays: RankArrays, *, has_peers: bool) -> Blind | None:
    if len(level.run.ranks) < 2:
        return "others missing" if level.run.missing else "one rank"
    kinds = level.kept.kinds
    if len(arrays.ranks) < 2 or not kinds["in_ns"].sum():
        return "no collective"
    # a thread that works with a device goes on at once, and its stream waits
    if kinds["waited_ns"].sum() < STANDS_STILL * kinds["in_ns"].sum():
        return "no wait"
    if not len(arrays.in_groups.row):
        return "no collective"
    return None if has_peers else "no peers"


def _near(arrays: RankArrays, suspect: Suspect) -> list[int]:
    whole = suspect.excess.totals[:, :, -1].mean(axis=1)
    order = np.argsort(whole, kind="stable")
    by_median = order[np.argsort(np.abs(whole[order] - np.median(whole)), kind="stable")]
    rows = np.stack((by_median, order), axis=1).reshape(-1)[:MOST_NEAR].tolist()
    return [int(arrays.ranks[suspect.peers.rows[row]]) for row in dict.fromkeys(rows) if row != suspect.row]


class _Verdicts:
    """Judges suspects together: who hides behind whom."""

    def __init__(self, arrays: RankArrays, peers: Sequence[Peers], processors: Processors, timed: Timed,
                 amounts: Mapping[str, Any]) -> None:
        self._arrays, self._processors, self._timed, self._amounts = arrays, processors, timed, amounts
        self._known: dict[int, list[Activity]] = {}
        self._tested = 0
        self._suspects = sorted((one for group in peers for one in self._of(group)), key=lambda one: -one.by_ns)
        self._suspects = self._suspects[:MOST_LOOKED_AT]

    def _of(self, peers: Peers) -> Iterator[Suspect]:
        excess = excess_of_peers(peers, self._arrays.steps)
        self._known[id(excess)] = list(peers.labels)
        self._tested += len(peers.rows) * len(excess.kinds)
        amounts = excess.to_fix.mean(axis=1)
        kind = amounts.argmax(axis=1)
        # the whole, where it is nearly as much as the kind that is most
        kind = np.where(amounts[:, -1] >= ALMOST_ALL * amounts.max(axis=1), len(excess.kinds) - 1, kind)
        by_ns = np.take_along_axis(amounts, kind[:, None], axis=1)[:, 0]
        for row in np.flatnonzero(by_ns >= WORTH_A_LOOK * self._arrays.step_ns[peers.rows]).tolist():
            yield Suspect(place=int(peers.rows[row]), peers=peers, excess=excess, row=row, kind=int(kind[row]),
                          by_ns=float(by_ns[row]))

    def culprits(self) -> list[tuple[Culprit, Suspect]]:
        """Those whose fixing would gain most first, each given that those in front of it are fixed."""
        self._judge_chance()
        late = [one for one in self._suspects if one.p_value <= SURE]
        fixed = np.zeros(len(self._arrays.ranks))
        fixed[[one.place for one in late]] = [one.by_ns for one in late]
        waits = Waits(self._arrays)
        seen = waits.waited_for(fixed)
        last = {one.place: _gain(one, seen) for one in self._suspects}
        gains = _one_after_the_other(late, last, self._arrays.replica, waits.meets)
        alone = waits.waited_for(np.zeros(len(fixed))) if len(gains) < len(self._suspects) else seen
        found = []
        for one in self._suspects:
            first = gains.get(one.place, _gain(one, alone))
            found.append((self._culprit(one, min(first, last[one.place]), last[one.place]), one))
        order = {place: number for number, place in enumerate(gains)}
        found.sort(key=lambda pair: (order.get(pair[1].place, len(order)), -pair[0].gain_ns))
        found = [pair for pair in found if max(pair[0].gain_ns, pair[0].last_gain_ns) > 0]
        return [pair for number, pair in enumerate(found) if pair[0].certain or number < MOST_NAMED]

    def _judge_chance(self) -> None:
        """Suspects that are late for sure are taken out in front of the next round."""
        beyond = {id(one.excess): one.excess.beyond.copy() for one in self._suspects}
        left = list(self._suspects)
        for _ in range(ROUNDS):
            for key in {(id(one.excess), one.kind) for one in left}:
                some = [one for one in left if (id(one.excess), one.kind) == key]
                chances = chance_of_any(beyond[key[0]][:, :, key[1]], [one.row for one in some], self._tested)
                for one, chance in zip(some, chances.tolist(), strict=True):
                    one.p_value = chance
            sure = [one for one in left if one.p_value <= SURE]
            for one in sure:
                beyond[id(one.excess)][one.row] = 0
            left = [one for one in left if one.p_value > SURE]
            if not sure or not left:
                return

    def _culprit(self, one: Suspect, gain_ns: float, last_ns: float) -> Culprit:
        arrays, number = self._arrays, int(self._arrays.ranks[one.place])
        late = one.excess.beyond[one.row, :, one.kind]
        step_ns = float(arrays.step_ns.mean())
        causes = self._causes(one, max(gain_ns, last_ns))
        is_core = bool(causes) and causes[0].kind == "core"
        turns = (self._processors.by_turns_ns(number) if is_core else
                 self._processors.by_turns_ratio(number) * sum(_of_peers(cause, one) for cause in causes[:1]))
        spread = 2 * float(late.std(ddof=1)) / len(late) ** 0.5 if len(late) > 1 else 0.0
        return Culprit(
            rank=number, delayed=arrays.ranks.tolist(), step_ns=step_ns, gain_ns=gain_ns, last_gain_ns=last_ns,
            gain_error_ns=float(np.hypot(spread, SKETCHED * max(gain_ns, last_ns))), p_value=float(one.p_value),
            num_peers=len(one.peers.rows) - 1, excess_ns=late.tolist(),
            late_steps=late_steps_of(np.array(arrays.steps), late, MATERIAL * step_ns), causes=causes,
            by_turns_ns=turns)

    def _causes(self, one: Suspect, gain_ns: float) -> list[Cause]:
        number = int(self._arrays.ranks[one.place])
        if self._processors.lacked_ns(number) >= MOST_OF_IT * max(one.by_ns, gain_ns):
            others = [int(rank) for rank in self._arrays.ranks[one.peers.rows] if rank in self._processors.ran_ns]
            return [Cause(kind="core", where=None, gain_ns=gain_ns, spent=self._processors.share([number]),
                          of_peers=self._processors.share([rank for rank in others if rank != number]))]
        causes = sketched_causes(one.excess, one.row, one.excess.kinds[one.kind], self._known[id(one.excess)],
                                 list(self._timed.longer(one.peers, one.row)), gain_ns)
        peers = {kind: np.delete(amounts[one.peers.rows], one.row) for kind, amounts in self._amounts.items()}
        known = [kind for kind, amounts in peers.items() if not np.isnan(amounts).all()]
        batch = more_data({kind: float(self._amounts[kind][one.place]) for kind in known},
                          {kind: float(np.nanmedian(peers[kind])) for kind in known}, causes[:1])
        return causes if batch is None else [replace(batch, gain_ns=gain_ns)]


def _of_peers(cause: Cause, one: Suspect) -> float:
    return float(one.excess.usual[one.row].sum()) if cause.kind in AMOUNTS else cause.of_peers


def _gain(one: Suspect, seen: WaitedFor) -> float:
    return float(np.clip(seen.most_ns[one.place], 0, one.by_ns))


def _one_after_the_other(late: Sequence[Suspect], gains: Mapping[int, float], replica: Any, meets: Any) -> (
        dict[int, float]):
    """What the job gains by each, in the order in which fixing them gains most.

    Delays in one replica of the model add up, and the job waits for the replica that is latest. Of ranks that meet
    again and again in between, the one that is latest in each activity counts.

    Args:
        late: Those that are fixed.
        gains: By place, what each of them delays.
        replica: Number of the replica of each place.
        meets: Number of the ranks that each place meets in its replica.
    """
    delays = {one.place: _by_activity(one, gains[one.place]) for one in late}
    found, left = dict[int, float](), [one.place for one in late]
    while left:
        before = _delay([delays[place] for place in left], replica[left], meets[left])
        after = {}
        for place in left:
            others = [one for one in left if one != place]
            after[place] = _delay([delays[one] for one in others], replica[others], meets[others])
        best = min(left, key=lambda place: (after[place], -gains[place]))
        found[best] = before - after[best]
        left.remove(best)
    return found


def _delay(delays: Sequence[Mapping[Activity, float]], replica: Any, meets: Any) -> float:
    """By how much ranks delay the job together: by what the latest replica is late."""
    of_replica = dict[int, float]()
    most = dict[tuple[int, int, Activity], float]()
    for mine, own, met in zip(delays, replica.tolist(), meets.tolist(), strict=True):
        for activity, ns in mine.items():
            key = own, met, activity
            most[key] = max(most.get(key, 0.0), ns)
    for (own, _, _), ns in most.items():
        of_replica[own] = of_replica.get(own, 0.0) + ns
    return max(of_replica.values(), default=0.0)


def _by_activity(one: Suspect, gain_ns: float) -> dict[Activity, float]:
    """What a rank delays, divided like its excess."""
    beyond = np.maximum(one.excess.mean[one.row] - one.excess.usual[one.row], 0.0)
    shares = beyond / beyond.sum() if beyond.sum() > 0 else np.full(len(beyond), 1 / max(len(beyond), 1))
    return {activity: float(gain_ns * share) for activity, share in zip(one.peers.labels, shares, strict=True)
            if share > 0}


def excess_of_peers(peers: Peers, steps: Sequence[int]) -> Excess:
    """Work of peers as it is compared."""
    names = sorted({one.kind for one in peers.labels})
    number, none = len(peers.labels), np.empty(0, np.int64)
    return Excess(
        ranks=peers.rows, steps=np.array(steps), counts=np.ones(len(steps), bool), labels=np.arange(number),
        work=peers.work, position=np.zeros(number, np.int64), recorded=peers.work, piece=none, place=none,
        kinds=[*names, WHOLE], kind_of=np.array([names.index(one.kind) for one in peers.labels], np.int64))


def _amounts(arrays: RankArrays) -> dict[str, Any]:
    """Means of a step, of each rank, by the kind of cause that they are; NaN where they are not known."""
    means = arrays.windows.group_by("rank").agg(pl.col(*AMOUNTS.values()).cast(pl.Float64).mean()).sort("rank")
    return {kind: means[column].fill_null(np.nan).to_numpy() for kind, column in AMOUNTS.items()}
