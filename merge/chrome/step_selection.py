"""Steps of ranks, and what is written of each rank where steps or a window are asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from distprof.contract.tables import STEPS
from distprof.errors import UsageError
from distprof.merge.chrome.budget import WithinBudget
from distprof.merge.chrome.options import MergeOptions, NumberRanges
from distprof.merge.chrome.rank_surveys import RankSurvey
from distprof.merge.clock.model import RankClock
from distprof.merge.layout.event_selection import EventSelection
from distprof.merge.layout.windows import Windows

if TYPE_CHECKING:
    import polars as pl

Steps = tuple[Any, Any, Any]
"""Start, end and number of a rank's steps in order of time, int64, on the rank's own clock."""


def step_times(one: RankSurvey, recorded: pl.DataFrame | None) -> Steps:
    """Those distprof recorded, else those that torch.profiler marked."""
    if recorded is not None and one.rank.has(STEPS):
        mine = recorded.filter(recorded["rank"] == one.rank.number).sort("start_ns")
        return mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy(), mine["step"].to_numpy()
    found = sorted({(start, end, int(marked[1])) for name, start, end in one.survey.steps
                    if (marked := re.fullmatch(r"ProfilerStep#([0-9]{1,18})", name))})
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy()


def wanted_steps(spans: NumberRanges | None, steps: Mapping[int, Steps],
            choice: WithinBudget | None) -> dict[int, list[tuple[int, int]]]:
    """Rank -> spans of the steps that are written; empty where all of the time is."""
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
    """The events of a rank that are written.

    Args:
        options: What is asked for.
        steps: Spans of the steps that are written; None for all of the time.
        clock: Of the rank.
        first_ns: Begin of the trace, on the common clock.
    """
    windows = steps
    if options.window_ns is not None:
        start, end = (clock.to_own(first_ns + edge) for edge in options.window_ns)
        windows = [(max(start, first), min(end, last)) for first, last in (steps if steps is not None else [
            (start, end)]) if max(start, first) < min(end, last)]
    return EventSelection(windows_ns=None if windows is None else Windows(windows), categories=options.categories,
                     without_python=options.without_python, min_duration_ns=options.min_duration_ns,
                     keep=options.keep, drop=options.drop)
