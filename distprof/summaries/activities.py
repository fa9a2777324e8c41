"""What a rank does between its calls: its steps split by phase and module of the call in front of which it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.contract.rank_summary import (
    COMMUNICATION,
    MOST_ACTIVITIES,
    NO_INTEGER,
    SPENT_COLUMNS,
    Activity,
    PackedTable,
)
from distprof.summaries.packing import Cut, Integers, integers, packed_arrays
from distprof.summaries.rank_calls import RankCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """When a rank waited for collectives: intervals that do not overlap, ascending."""

    starts: Integers
    ends: Integers
    before: Integers
    """Time in those in front of each."""

    def until(self, at: Any) -> Any:
        """Time in them up to some times."""
        if not len(self.starts):
            return np.zeros(len(at), np.int64)
        index = np.searchsorted(self.starts, at, "right") - 1
        inside = np.clip(at - self.starts[index], 0, self.ends[index] - self.starts[index])
        return np.where(index >= 0, self.before[index] + inside, 0)


def blocked_of(calls: RankCalls) -> Blocked:
    """The waits that are known."""
    known = (calls.wait_start != NO_INTEGER) & (calls.wait_end > calls.wait_start)
    order = np.argsort(calls.wait_start[known], kind="stable")
    starts, ends = calls.wait_start[known][order], calls.wait_end[known][order]
    if len(starts):
        reach = np.maximum.accumulate(ends)
        starts = np.maximum(starts, np.append(starts[:1], reach[:-1]))
        ends = np.maximum(ends, starts)
    return Blocked(starts=starts, ends=ends, before=np.cumsum(ends - starts) - (ends - starts))


def windows_of(steps: Any | None, calls: RankCalls) -> dict[int, tuple[int, int]]:
    """Step -> start and end; as far as calls show it where the table of steps does not have it."""
    found = dict[int, tuple[int, int]]()
    order = np.argsort(calls.step, kind="stable")
    numbers, first = np.unique(calls.step[order], return_index=True)
    for number, rows in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
        found[number] = int(calls.enqueue[rows].min()), int(max(calls.enqueue[rows].max(), calls.end[rows].max()))
    if steps is not None:
        starts, ends = (integers(steps, name).tolist() for name in ("start_ns", "end_ns"))
        found |= {number: (start, end) for number, start, end in zip(
            integers(steps, "step").tolist(), starts, ends, strict=True) if number in found and end > start}
    return found


def spent_of(calls: RankCalls, blocked: Blocked, windows: dict[int, tuple[int, int]],
             cut: Cut) -> tuple[list[Activity], PackedTable]:
    """Time of each step by activity; that which is left of the last call lies behind it."""
    keys = np.stack((calls.phase, calls.module)).astype(np.int64)
    unique, label = np.unique(keys, axis=1, return_inverse=True)
    phases, modules = [*calls.phases, "outside"], [*calls.modules, None]  # the last ones, for -1
    known, place = _folded([Activity(kind=phases[phase], module_path=modules[module])
                            for phase, module in unique.T.tolist()], cut)
    label = place[label.reshape(-1)]
    end, waiting = len(known), len(known) + 1
    known += [Activity(kind="end"), Activity(kind=COMMUNICATION)]
    ns = np.zeros((len(windows), len(known)), np.int64)
    for index, (number, (start, stop)) in enumerate(windows.items()):
        rows = np.flatnonzero(calls.step == number)
        rows = rows[np.argsort(calls.enqueue[rows], kind="stable")]
        at = np.concatenate(([start], np.clip(calls.enqueue[rows], start, stop), [stop]))
        before = blocked.until(at)
        own = np.maximum(np.diff(at) - np.diff(before), 0)
        np.add.at(ns[index], label[rows], own[:-1])
        ns[index, end], ns[index, waiting] = own[-1], before[-1] - before[0]
    step, activity = np.nonzero(ns)
    arrays = {"step": np.array(list(windows), np.int64)[step], "activity": activity, "ns": ns[step, activity]}
    return known, packed_arrays(SPENT_COLUMNS, arrays)


def _folded(known: list[Activity], cut: Cut) -> tuple[list[Activity], Integers]:
    """Activities of outer modules, as far inside as there is room for, and the number of each one among them.

    That depends on what a rank calls and not on how long it took: ranks that call the same are split alike.
    """
    room = MOST_ACTIVITIES - 2
    deepest = max((one.module_path.count(".") + 1 for one in known if one.module_path), default=0)
    for depth in range(deepest, -1, -1):
        folded = [_outer(one, depth) for one in known]
        numbers = {one: number for number, one in enumerate(dict.fromkeys(folded))}
        if len(numbers) <= room:
            break
    if len(numbers) > room:  # of more phases than there are
        folded = [Activity(kind="other") for _ in known]
        numbers = {Activity(kind="other"): 0}
    cut["activities"] += len(known) - len(numbers)
    return list(numbers), np.array([numbers[one] for one in folded], np.int64)


def _outer(one: Activity, depth: int) -> Activity:
    if not one.module_path:
        return one
    return Activity(kind=one.kind, module_path=".".join(one.module_path.split(".")[:depth]))
