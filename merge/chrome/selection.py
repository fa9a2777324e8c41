"""Chooses what goes into the merged trace: events of a rank; ranks and steps that fit into `--max-size`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.chrome.windows import Windows
from distprof.merge.scan.engine import Interner
from distprof.merge.scan.scanned_columns import NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSelection:
    """Filters of one rank's events. Names of processes and threads always stay."""

    windows_ns: Windows | None = None
    """Spans on the rank's own clock; what lies outside of all of them is left out. None: no limit."""
    categories: frozenset[str] | None = None
    """Those that stay; events without a category stay too. None: all."""
    without_python: bool = False
    """Leaves the Python frames out that torch.profiler records `with_stack`."""
    min_duration_ns: int = 0
    """Shorter slices are left out."""

    @property
    def is_all(self) -> bool:
        """True where nothing is left out."""
        return self == EventSelection()

    def kept(self, start_ns: Any, duration_ns: Any, category: Any, is_slice: Any, categories: Interner) -> Any:
        """True a row for what stays.

        Args:
            start_ns: int64 a row, the rank's own clock.
            duration_ns: int64 a row, `NONE` where there is none.
            category: Number a row, -1 where there is none.
            is_slice: bool a row.
            categories: Texts of the numbers.
        """
        keep = ~(is_slice & (np.maximum(duration_ns, 0) < self.min_duration_ns))
        if self.categories is not None or self.without_python:
            unwanted = np.array([not self._wants(text.decode("utf-8", "replace")) for text in categories.texts()]
                                + [False])  # the last one is for -1
            keep &= ~unwanted[category]
        if self.windows_ns is not None:
            end_ns = start_ns + np.where(duration_ns == NONE, 0, np.maximum(duration_ns, 0))
            keep &= self.windows_ns.meets(start_ns, end_ns)
        return keep

    def _wants(self, category: str) -> bool:
        return (self.categories is None or category in self.categories) and not (
            self.without_python and category == "python_function")


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
