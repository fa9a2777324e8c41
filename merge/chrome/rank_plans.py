"""Plans the second pass: out of the surveys of all ranks, the origin of time and what is written of each rank."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from distprof.contract.passes import ARRIVALS
from distprof.contract.tables import STEPS
from distprof.errors import DataError, UsageError
from distprof.merge.chrome.budget import WithinBudget, by_importance, within_budget
from distprof.merge.chrome.drawing import BYTES_COUNTED, BYTES_DRAWN, DRAWN, CounterValue, DrawnCollective, DrawnTensor
from distprof.merge.chrome.formats import FORMATS
from distprof.merge.chrome.numbering import NUMBERS_PER_RANK
from distprof.merge.chrome.options import MergeOptions, NumberRanges
from distprof.merge.chrome.rank_surveys import RankSurvey
from distprof.merge.chrome.survey import ALL, Survey
from distprof.merge.clock.model import Clock, RankClock
from distprof.merge.layout.event_selection import EventSelection
from distprof.merge.layout.windows import Windows
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.timelines import steps_of_timeline
from distprof.merge.scan.trace_file import TraceFile
from distprof.merge.totals.description import table_metadata
from distprof.units import size

if TYPE_CHECKING:
    import polars as pl

    from distprof.merge.chrome.collective_drawing import Drawing

Chain = tuple["pl.DataFrame", "pl.DataFrame"]
"""`on_common_clock` of a `CriticalPath`, and the `MERGED_COLLECTIVES` that they name."""
MOST_NUMBERS = 1 << 31
"""Perfetto keeps 32 bits of a pid or tid, with a sign."""
Steps = tuple[Any, Any, Any]
"""Start, end and number of a rank's steps in order of time, int64, on the rank's own clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What is decided about a rank before its events are read for the second time."""

    trace: TraceFile
    rank: int
    title: str
    """`rank 3 | tp1 dp1 | host7`."""
    survey: Survey
    clock: RankClock
    origin_ns: int
    """The instant of the common clock that becomes 0."""
    tags: dict[str, int]
    steps: Steps
    numbers: int = NUMBERS_PER_RANK
    selection: EventSelection = ALL
    table_metadata: dict[str, str] = field(default_factory=dict)
    collectives: list[DrawnCollective] = field(default_factory=list)
    """What is drawn of communication."""
    tensors: list[DrawnTensor] = field(default_factory=list)
    draws_memory: bool = False
    """True where counters of the allocators are drawn."""
    traced_steps: Sequence[tuple[int, int, int]] | None = None
    """Start, end and number of those in the timeline, likewise; None where the timeline itself marks its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """All ranks that are written, and the instant that becomes 0."""

    ranks: list[RankPlan]
    origin_ns: int
    remarks: list[str]
    counters: list[CounterValue]
    """Of the whole job, on the common clock."""
    counters_pid: int
    """Of the process that has them."""


def plan_ranks(run: Run, clock: Clock, read: list[RankSurvey], options: MergeOptions,
               collectives: pl.DataFrame | None = None, recorded: pl.DataFrame | None = None,
               allocations: pl.DataFrame | None = None, chain: Chain | None = None) -> Plans:
    """Brings all ranks to one clock and decides what of each is written.

    Args are those of `merge_traces`; `recorded` are its `steps`.

    Raises:
        DataError: A trace has more threads than there are numbers.
        UsageError: The options ask for steps that are not there, or for a size in which nothing fits.
    """
    if (options.choose_events or options.max_bytes or options.tensor_bytes) and not FORMATS[
            options.format].chooses_events:
        raise UsageError(f"expected whole ranks with --format {options.format}, found some that choose or add events",
                         hint="only --ranks goes with it: the files are packed as they are")
    if options.operators and not FORMATS[options.format].chooses_events:
        raise UsageError(f"expected --format chrome with --operators, found {options.format}")
    if options.critical_path and not FORMATS[options.format].chooses_events:
        raise UsageError(f"expected --format chrome with --critical-path, found {options.format}",
                         hint="nothing can be drawn into files that are packed as they are")
    clocks = {one.rank.number: clock.line(one.rank.number) for one in read}
    first_ns = min((int(clocks[one.rank.number].to_common(one.survey.first_ns)) for one in read
                    if one.survey.first_ns is not None), default=1)
    origin_ns = (first_ns - 1) // 1000 * 1000
    steps = {one.rank.number: step_times(one, recorded) for one in read}
    choice, remarks = _choice(read, steps, options, collectives)
    chosen = [one for one in read if choice is None or one.rank.number in choice.ranks]
    wanted = _wanted(options.steps, steps, choice)
    selections = {one.rank.number: _selection(options, wanted.get(one.rank.number), clocks[one.rank.number], first_ns)
                  for one in chosen}
    drawn = _drawn(clock, _traced(collectives, recorded), chain, selections, steps, origin_ns)
    draws = options.categories is None or DRAWN in options.categories
    tensors = _tensors(allocations, chosen, selections, clocks) if draws else {}
    numbers = _numbers(chosen, drawn.most_threads if drawn is not None else 0)
    pid = numbers * (max((one.rank.number for one in chosen), default=0) + 1) + 1
    return Plans(origin_ns=origin_ns, remarks=remarks, counters=drawn.counters if drawn is not None else [],
                 counters_pid=pid, ranks=[
        RankPlan(trace=one.trace, rank=one.rank.number, title=_title(one.rank), survey=one.survey,
                 tags={"rank": one.rank.number, "mp_size": run.mp_size, "dp_size": run.dp_size},
                 clock=clocks[one.rank.number], origin_ns=origin_ns,
                 steps=steps[one.rank.number], numbers=numbers, table_metadata=table_metadata(run),
                 selection=selections[one.rank.number],
                 collectives=drawn.ranks.get(one.rank.number, []) if drawn is not None else [],
                 tensors=tensors.get(one.rank.number, []), draws_memory=draws and one.survey.num_allocations > 0,
                 traced_steps=_traced_steps(one.rank, recorded))
        for one in chosen])


def _tensors(allocations: pl.DataFrame | None, chosen: list[RankSurvey], selections: Mapping[int, EventSelection],
             clocks: Mapping[int, RankClock]) -> dict[int, list[DrawnTensor]]:
    if allocations is None:
        return {}
    from distprof.merge.chrome.memory_drawing import draw_tensors

    found = {}
    for one in chosen:
        rank, last_ns = one.rank.number, one.survey.last_ns or 0
        found[rank] = draw_tensors(allocations.filter(allocations["rank"] == rank), clocks[rank], last_ns,
                                   selections[rank].windows_ns)
    return found


def _traced_steps(rank: Rank, recorded: pl.DataFrame | None) -> Sequence[tuple[int, int, int]] | None:
    if recorded is None:
        return None
    steps = steps_of_timeline(recorded, rank)
    return list(steps.select("start_ns", "end_ns", "step").iter_rows())


def _traced(collectives: pl.DataFrame | None, recorded: pl.DataFrame | None) -> pl.DataFrame | None:
    """Collectives up to the arrivals pass, in which there is no timeline beside which they could be drawn."""
    if collectives is None or recorded is None:
        return collectives
    import polars as pl  # takes its time: not where there are no collectives

    first = recorded.filter(pl.col("pass") == ARRIVALS)["step"].min()
    return collectives if first is None else collectives.filter(
        pl.col("step").is_null() | (pl.col("step") < pl.lit(first)))


def _drawn(clock: Clock, collectives: pl.DataFrame | None, chain: Chain | None,
           selections: Mapping[int, EventSelection], steps: Mapping[int, Steps], origin_ns: int) -> Drawing | None:
    """What is drawn of communication and chains; it is in the category of what the merge draws."""
    if (collectives is None and chain is None) or any(
            one.categories is not None and DRAWN not in one.categories for one in selections.values()):
        return None
    from distprof.merge.chrome.collective_drawing import Drawing, DrawOptions, draw_collectives

    wanted = {}
    for rank, selection in selections.items():
        line, (starts, ends, numbers) = clock.line(rank), steps[rank]
        windows = None if selection.windows_ns is None else selection.windows_ns.map(line.to_common)
        wanted[rank] = DrawOptions(windows_ns=windows, min_duration_ns=selection.min_duration_ns,
                                   step_ns=dict(zip(numbers.tolist(), (ends - starts).tolist(), strict=True)))
    found = Drawing(ranks={}, counters=[]) if collectives is None else draw_collectives(
        collectives, clock, wanted, origin_ns)
    if chain is None:
        return found
    from distprof.merge.chrome.chain_drawing import draw_chains

    number = sum(len(one.arrows) for drawn in found.ranks.values() for one in drawn)
    chains = draw_chains(*chain, wanted, origin_ns, number)
    return replace(found, ranks={rank: [*found.ranks.get(rank, ()), *chains.get(rank, ())] for rank in wanted})


def step_times(one: RankSurvey, recorded: pl.DataFrame | None) -> Steps:
    """Those distprof recorded, else those that torch.profiler marked."""
    if recorded is not None and one.rank.has(STEPS):
        mine = recorded.filter(recorded["rank"] == one.rank.number).sort("start_ns")
        return mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy(), mine["step"].to_numpy()
    found = sorted({(start, end, int(marked[1])) for name, start, end in one.survey.steps
                    if (marked := re.fullmatch(r"ProfilerStep#([0-9]{1,18})", name))})
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy()


def _numbers(read: list[RankSurvey], num_drawn: int) -> int:
    """How many pids and tids are set aside for each rank."""
    most = num_drawn + max(
        (len(one.survey.threads) * (1 + one.survey.layout.num_lanes) + 64 for one in read), default=0)
    needed = 1 << (most - 1).bit_length()
    highest = max((one.rank.number for one in read), default=0)
    if needed * (highest + 2) >= MOST_NUMBERS:
        raise DataError(f"expected at most {MOST_NUMBERS // (highest + 2)} processes and threads in each trace, as "
                        f"ranks go up to {highest} and all get numbers of 31 bits, found {most}",
                        hint="merge fewer ranks at once: --ranks 0-63")
    return max(needed, NUMBERS_PER_RANK) if NUMBERS_PER_RANK * (highest + 2) < MOST_NUMBERS else needed


def _choice(read: list[RankSurvey], steps: Mapping[int, Steps], options: MergeOptions,
            collectives: pl.DataFrame | None) -> tuple[WithinBudget | None, list[str]]:
    """Ranks and steps that fit into --max-size; None where all do."""
    rows = {} if collectives is None else dict(collectives["rank"].value_counts().iter_rows())
    sizes = {one.rank.number: one.survey.num_bytes + rows.get(one.rank.number, 0) * BYTES_DRAWN
             + one.survey.num_allocations * BYTES_COUNTED for one in read}
    if options.max_bytes is None or sum(sizes.values()) <= options.max_bytes:
        return None, []
    shares = {one.rank.number: _shares(one.survey, steps[one.rank.number]) for one in read}
    slowness = {rank: max((end - start for start, end, _ in zip(*steps[rank], strict=True)), default=0.0)
                for rank in sizes}
    choice = within_budget(sizes, by_importance(slowness, _late(collectives)), shares, options.max_bytes)
    if not choice.ranks:
        raise UsageError(f"expected a larger --max-size, found {size(options.max_bytes)}: not one step of a rank fits",
                         hint=f"all ranks are {size(sum(sizes.values()))} of text")
    important = ", ".join(f"{rank} ({why})" for rank, why in choice.ranks.items() if why != "fits")
    remarks = [f"--max-size {size(options.max_bytes)} of {size(sum(sizes.values()))}: left out ranks "
               f"{NumberRanges(tuple((rank, rank) for rank in choice.left_out)) if choice.left_out else 'none'}; kept "
               f"{len(choice.ranks)}{f', among them {important}' if important else ''}; slowest by its longest step"]
    if choice.steps is not None:
        remarks.append("of these only steps "
                       + ", ".join(f"{step} ({why})" for step, why in sorted(choice.steps.items())))
    return choice, remarks


def _late(collectives: pl.DataFrame | None) -> int | None:
    if collectives is None:
        return None
    from distprof.merge.cost.collectives import most_often_late

    return most_often_late(collectives)


def _shares(survey: Survey, steps: Steps) -> list[tuple[int, float]]:
    if survey.first_ns is None or survey.last_ns is None or survey.last_ns <= survey.first_ns:
        return []
    whole = survey.last_ns - survey.first_ns
    return [(number, (min(end, survey.last_ns) - max(start, survey.first_ns)) / whole)
            for start, end, number in zip(*(column.tolist() for column in steps), strict=True)
            if end > survey.first_ns and start < survey.last_ns]


def _wanted(spans: NumberRanges | None, steps: Mapping[int, Steps],
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
        raise UsageError(f"expected steps of the trace for --steps, found {spans}",
                         hint=f"there are {NumberRanges(tuple((step, step) for step in there))}" if there
                         else "no rank recorded its steps: choose by --window")
    return found


def _selection(options: MergeOptions, steps: list[tuple[int, int]] | None, clock: RankClock,
               first_ns: int) -> EventSelection:
    windows = steps
    if options.window_ns is not None:
        start, end = (clock.to_own(first_ns + edge) for edge in options.window_ns)
        windows = [(max(start, first), min(end, last)) for first, last in (steps if steps is not None else [
            (start, end)]) if max(start, first) < min(end, last)]
    return EventSelection(windows_ns=None if windows is None else Windows(windows), categories=options.categories,
                     without_python=options.without_python, min_duration_ns=options.min_duration_ns)


def _title(rank: Rank) -> str:
    return " | ".join(filter(None, (f"rank {rank.number}", rank.place, rank.host)))
