"""Selects what is written of each rank: the steps and times that a user asks for, and what fits into `--max-size`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distprof.contract.tables import STEPS
from distprof.errors import UsageError
from distprof.merge.chrome.drawing.drawn import BYTES_COUNTED, BYTES_DRAWN
from distprof.merge.chrome.options import MergeOptions, NumberRanges
from distprof.merge.chrome.rank_surveys import RankSurvey
from distprof.merge.chrome.survey import Survey
from distprof.merge.clock.model import RankClock
from distprof.merge.layout.event_selection import EventSelection, Windows
from distprof.units import size

if TYPE_CHECKING:
    import polars as pl

    from distprof.merge.cost.measured_parts import CollectivePieces

Steps = tuple[Any, Any, Any]
"""Start, end and number of a rank's steps in order of time, int64, on the rank's own clock."""


def step_times(one: RankSurvey, recorded: pl.DataFrame | None) -> Steps:
    """Returns the steps that distprof recorded, else those that torch.profiler marked."""
    if recorded is not None and one.rank.has(STEPS):
        mine = recorded.filter(recorded["rank"] == one.rank.number).sort("start_ns")
        return mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy(), mine["step"].to_numpy()
    found = sorted({(start, end, int(marked[1])) for name, start, end in one.survey.steps
                    if (marked := re.fullmatch(r"ProfilerStep#([0-9]{1,18})", name))})
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy()


def wanted_steps(spans: NumberRanges | None, steps: Mapping[int, Steps],
                 choice: WithinBudget | None) -> dict[int, list[tuple[int, int]]]:
    """Returns rank -> spans of the steps that are written; empty if all of the time is.

    Raises:
        UsageError: No rank has a step that is in `spans` and in `choice`.
    """
    chosen = choice.steps if choice is not None else None
    if spans is None and chosen is None:
        return {}
    found = {rank: [(start, end) for start, end, number in zip(*(column.tolist() for column in columns), strict=True)
                    if (spans is None or number in spans) and (chosen is None or number in chosen)]
             for rank, columns in steps.items()}
    if not any(found.values()):
        there = sorted({int(number) for columns in steps.values() for number in columns[2].tolist()})
        raise UsageError(f"no step of the trace is in --steps {spans}",
                         hint=f"its steps are {NumberRanges(tuple((step, step) for step in there))}" if there
                         else "no rank recorded its steps: use --window instead")
    return found


def selection_of(options: MergeOptions, steps: list[tuple[int, int]] | None, clock: RankClock,
                 first_ns: int) -> EventSelection:
    """Returns the selection of events of a rank that are written.

    Args:
        options: What is requested.
        steps: Spans of the steps that are written; None: all of the time.
        clock: Clock of the rank.
        first_ns: Start of the merged trace, on the common clock.
    """
    windows = steps
    if options.window_ns is not None:
        start, end = (clock.to_own(first_ns + edge) for edge in options.window_ns)
        windows = [(max(start, first), min(end, last)) for first, last in (steps if steps is not None else [
            (start, end)]) if max(start, first) < min(end, last)]
    return EventSelection(windows_ns=None if windows is None else Windows(windows), categories=options.categories,
                     without_python=options.without_python, min_duration_ns=options.min_duration_ns,
                     keep=options.keep, drop=options.drop)


def fitting(read: list[RankSurvey], steps: Mapping[int, Steps], options: MergeOptions,
            collectives: CollectivePieces | None) -> tuple[WithinBudget | None, list[str]]:
    """Returns the ranks and steps that fit into --max-size, None if all do; and remarks.

    Raises:
        UsageError: Not even one step of a rank fits.
    """
    rows = Counter[int]()
    for piece in collectives or ():
        rows.update(dict(piece["rank"].value_counts().iter_rows()))
    sizes = {one.rank.number: one.survey.num_bytes + rows[one.rank.number] * BYTES_DRAWN
             + one.survey.num_allocations * BYTES_COUNTED for one in read}
    if options.max_bytes is None or sum(sizes.values()) <= options.max_bytes:
        return None, []
    shares = {one.rank.number: _shares(one.survey, steps[one.rank.number]) for one in read}
    slowness = {rank: max((end - start for start, end, _ in zip(*steps[rank], strict=True)), default=0.0)
                for rank in sizes}
    choice = within_budget(sizes, by_importance(slowness, _late(collectives)), shares, options.max_bytes)
    if not choice.ranks:
        raise UsageError(f"--max-size {size(options.max_bytes)} is too small for even one step of a rank",
                         hint=f"all ranks are {size(sum(sizes.values()))} of text")
    important = ", ".join(f"{rank} ({why})" for rank, why in choice.ranks.items() if why != "fits")
    remarks = [f"--max-size {size(options.max_bytes)} of {size(sum(sizes.values()))}: dropped ranks "
               f"{NumberRanges(tuple((rank, rank) for rank in choice.left_out)) if choice.left_out else 'none'}; kept "
               f"{len(choice.ranks)}{f', including {important}' if important else ''}; slowest: by the longest step"]
    if choice.steps is not None:
        remarks.append("only these steps: "
                       + ", ".join(f"{step} ({why})" for step, why in sorted(choice.steps.items())))
    return choice, remarks


def _late(collectives: CollectivePieces | None) -> int | None:
    if collectives is None:
        return None
    from distprof.merge.cost.measures import most_often_late

    return most_often_late(collectives)


def _shares(survey: Survey, steps: Steps) -> list[tuple[int, float]]:
    if survey.first_ns is None or survey.last_ns is None or survey.last_ns <= survey.first_ns:
        return []
    whole = survey.last_ns - survey.first_ns
    return [(number, (min(end, survey.last_ns) - max(start, survey.first_ns)) / whole)
            for start, end, number in zip(*(column.tolist() for column in steps), strict=True)
            if end > survey.first_ns and start < survey.last_ns]


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinBudget:
    """What fits into the budget."""

    ranks: Mapping[int, str]
    """Rank -> why it is included, most important first."""
    steps: Mapping[int, str] | None
    """Step -> why it is included; None: all of them."""
    left_out: tuple[int, ...]
    """Ranks that are not included."""


def by_importance(slowness: Mapping[int, float], late: int | None) -> dict[int, str]:
    """Sorts ranks by importance: the slowest, the late one, the median, the fastest, then the rest.

    Args:
        slowness: Rank -> any measure of its time; equal for all ranks if nothing is known.
        late: The rank that came last into most collectives, if known.
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
    """Chooses ranks while they fit; if the first ones do not fit completely, steps of them.

    Args:
        sizes: Rank -> bytes of its trace.
        order: Rank -> why it matters, most important first.
        steps: Rank -> its steps, each a number and the share of the trace's time that it takes.
        max_bytes: Limit for the total.
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
    """Chooses steps of the most important ranks: the longest, the median, then others while they fit."""
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
