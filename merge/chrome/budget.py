"""Which ranks and steps fit into `--max-size`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinBudget:
    """What fits."""

    ranks: Mapping[int, str]
    """Rank -> why it is in, most important first."""
    steps: Mapping[int, str] | None
    """Step -> why it is in; None: all of them."""
    left_out: tuple[int, ...]
    """Ranks that are not in."""


def by_importance(slowness: Mapping[int, float], late: int | None) -> dict[int, str]:
    """Ranks by importance: the slowest, the late one, the one in the middle, the fastest, then the rest.

    Args:
        slowness: Rank -> any measure of its time, equal measures for all ranks where nothing is known.
        late: The rank that came last into most collectives, if that is known.
    """
    by_time = sorted(slowness, key=lambda rank: (-slowness[rank], rank))
    known = len(set(slowness.values())) > 1
    important = [(by_time[0], "slowest")] if known else []
    important += [(late, "most often late")] if late is not None and late in slowness else []
    important += [(by_time[len(by_time) // 2], "median"), (by_time[-1], "fastest")] if known else []
    found: dict[int, str] = {}
    for rank, why in important:
        found.setdefault(rank, why)
    return found | {rank: "fits" for rank in sorted(slowness) if rank not in found}


def within_budget(sizes: Mapping[int, int], order: Mapping[int, str],
                  steps: Mapping[int, Sequence[tuple[int, float]]], max_bytes: int) -> WithinBudget:
    """Chooses ranks while they fit; where the first ones do not fit whole, steps of them.

    Args:
        sizes: Rank -> bytes of its trace.
        order: Ranks, most important first, and why.
        steps: Rank -> its steps, each a number and the share of the trace's time that it takes.
        max_bytes: For all of it.
    """
    ranks: dict[int, str] = {}
    left = max_bytes
    for rank, why in order.items():
        if sizes[rank] <= left:
            ranks[rank], left = why, left - sizes[rank]
    important = [rank for rank, why in order.items() if why != "fits"] or list(order)[:1]
    if all(rank in ranks for rank in important):
        return WithinBudget(ranks=ranks, steps=None, left_out=tuple(sorted(set(sizes) - set(ranks))))
    return _fit_steps(sizes, {rank: order[rank] for rank in important}, steps, max_bytes)


def _fit_steps(sizes: Mapping[int, int], ranks: dict[int, str], steps: Mapping[int, Sequence[tuple[int, float]]],
               max_bytes: int) -> WithinBudget:
    """Steps of the most important ranks: the longest, the one in the middle, then others while they fit."""
    ranks = {rank: why for rank, why in ranks.items() if steps.get(rank)}
    while ranks:
        cost: dict[int, float] = {}
        longest: dict[int, float] = {}
        for rank in ranks:
            for number, share in steps[rank]:
                cost[number] = cost.get(number, 0.0) + share * sizes[rank]
                longest[number] = max(longest.get(number, 0.0), share)
        by_time = sorted(longest, key=lambda number: (-longest[number], number))
        order = {by_time[0]: "longest", by_time[len(by_time) // 2]: "median"} if len(by_time) > 1 else {
            by_time[0]: "only"}
        chosen: dict[int, str] = {}
        left = float(max_bytes)
        for number in [*order, *(number for number in sorted(longest) if number not in order)]:
            if cost[number] <= left:
                chosen[number], left = order.get(number, "fits"), left - cost[number]
        if chosen:
            return WithinBudget(ranks=ranks, steps=chosen, left_out=tuple(sorted(set(sizes) - set(ranks))))
        ranks.popitem()
    return WithinBudget(ranks={}, steps=None, left_out=tuple(sorted(sizes)))
