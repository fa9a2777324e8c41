"""Plans the second pass from the surveys of all ranks: the origin of time, and what of each rank is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from distprof.contract.merged import MERGED_COLLECTIVES
from distprof.contract.passes import ARRIVALS
from distprof.errors import DataError, UsageError
from distprof.merge.chrome.drawing.drawn import DRAWN, DrawnTensor
from distprof.merge.chrome.formats import FORMATS
from distprof.merge.chrome.numbering import NUMBERS_PER_RANK
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.rank_plan import Plans, RankPlan
from distprof.merge.chrome.rank_surveys import RankSurvey
from distprof.merge.chrome.step_selection import Steps, fitting, selection_of, step_times, wanted_steps
from distprof.merge.clock.model import Clock, RankClock
from distprof.merge.layout.event_selection import EventSelection
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.timelines import steps_of_timeline
from distprof.merge.totals.description import table_metadata

if TYPE_CHECKING:
    import polars as pl

    from distprof.merge.chrome.drawing.collectives import Drawing
    from distprof.merge.cost.measured_parts import CollectivePieces

MOST_NUMBERS = 1 << 31
"""Perfetto keeps 32 bits of a pid or tid, including a sign."""


def plan_ranks(run: Run, clock: Clock, read: list[RankSurvey], options: MergeOptions,
               collectives: CollectivePieces | None = None, recorded: pl.DataFrame | None = None,
               allocations: pl.DataFrame | None = None, chain: pl.DataFrame | None = None) -> Plans:
    """Aligns the clocks of all ranks and decides what of each is written.

    The arguments are those of `merge_traces`; `recorded` is its `steps`.

    Raises:
        DataError: A trace has more threads than there are numbers.
        UsageError: The options ask for steps that do not exist, or for a size in which nothing fits.
    """
    _check(options)
    clocks = {one.rank.number: clock.line(one.rank.number) for one in read}
    first_ns = min((int(clocks[one.rank.number].to_common(one.survey.first_ns)) for one in read
                    if one.survey.first_ns is not None), default=1)
    origin_ns = (first_ns - 1) // 1000 * 1000
    steps = {one.rank.number: step_times(one, recorded) for one in read}
    choice, remarks = fitting(read, steps, options, collectives)
    chosen = [one for one in read if choice is None or one.rank.number in choice.ranks]
    wanted = wanted_steps(options.steps, steps, choice)
    selections = {one.rank.number: selection_of(options, wanted.get(one.rank.number), clocks[one.rank.number], first_ns)
                  for one in chosen}
    drawn = drawn_communication(clock, traced(collectives, recorded), chain, selections, steps, origin_ns)
    draws = options.categories is None or DRAWN in options.categories
    tensors = drawn_tensors(allocations, chosen, selections, clocks) if draws else {}
    numbers = _numbers(chosen, drawn.most_threads if drawn is not None else 0)
    pid = numbers * (max((one.rank.number for one in chosen), default=0) + 1) + 1
    metadata = table_metadata(run)
    return Plans(origin_ns=origin_ns, remarks=remarks, drawing=drawn, counters_pid=pid, ranks=[
        RankPlan(trace=one.trace, rank=one.rank.number, title=_title(one.rank, options.name), survey=one.survey,
                 tags={"rank": one.rank.number, "mp_size": run.mp_size, "dp_size": run.dp_size},
                 clock=clocks[one.rank.number], origin_ns=origin_ns,
                 steps=steps[one.rank.number], numbers=numbers, table_metadata=metadata,
                 selection=selections[one.rank.number],
                 tensors=tensors.get(one.rank.number, []), draws_memory=draws and one.survey.num_allocations > 0,
                 draws_queues=draws and options.queues,
                 traced_steps=_traced_steps(one.rank, recorded))
        for one in chosen])


def _check(options: MergeOptions) -> None:
    if (options.choose_events or options.max_bytes or options.tensor_bytes or options.queues) and not FORMATS[
            options.format].chooses_events:
        raise UsageError(f"--format {options.format} cannot be combined with options that select or add events",
                         hint="only --ranks can be used: the files are packed unchanged")
    if options.name and not FORMATS[options.format].chooses_events:
        raise UsageError(f"--name needs --format chrome, not {options.format}, which packs the files unchanged")
    if options.operators and not FORMATS[options.format].chooses_events:
        raise UsageError(f"--operators needs --format chrome, not {options.format}")
    if options.anonymise and not FORMATS[options.format].chooses_events:
        raise UsageError(f"--anonymise needs --format chrome, not {options.format}, which packs the files unchanged")
    if options.critical_path and not FORMATS[options.format].chooses_events:
        raise UsageError(f"--critical-path needs --format chrome, not {options.format}",
                         hint="the files are packed unchanged, so nothing can be drawn into them")


def _traced_steps(rank: Rank, recorded: pl.DataFrame | None) -> Sequence[tuple[int, int, int]] | None:
    if recorded is None:
        return None
    steps = steps_of_timeline(recorded, rank)
    return list(steps.select("start_ns", "end_ns", "step").iter_rows())


def _numbers(read: list[RankSurvey], num_drawn: int) -> int:
    """Returns the number of pids and tids reserved for each rank."""
    most = num_drawn + max((one.survey.num_numbers for one in read), default=0)
    needed = 1 << (most - 1).bit_length()
    highest = max((one.rank.number for one in read), default=0)
    if needed * (highest + 2) >= MOST_NUMBERS:
        raise DataError(f"too many processes and threads in a trace: {most}, and with ranks up to {highest} each trace "
                        f"can have at most {MOST_NUMBERS // (highest + 2)} (ids have 31 bits)",
                        hint="merge fewer ranks at once: --ranks 0-63")
    return max(needed, NUMBERS_PER_RANK) if NUMBERS_PER_RANK * (highest + 2) < MOST_NUMBERS else needed


def _title(rank: Rank, name: str) -> str:
    return " | ".join(filter(None, (f"rank {rank.number}", name, rank.place, rank.host)))


def drawn_tensors(allocations: pl.DataFrame | None, chosen: list[RankSurvey], selections: Mapping[int, EventSelection],
                  clocks: Mapping[int, RankClock]) -> dict[int, list[DrawnTensor]]:
    """Returns the drawn tensors by rank."""
    if allocations is None:
        return {}
    from distprof.merge.chrome.drawing.device import draw_tensors

    found = {}
    for one in chosen:
        rank, last_ns = one.rank.number, one.survey.last_ns or 0
        found[rank] = draw_tensors(allocations.filter(allocations["rank"] == rank), clocks[rank], last_ns,
                                   selections[rank].windows_ns)
    return found


def traced(collectives: CollectivePieces | None, recorded: pl.DataFrame | None) -> CollectivePieces | None:
    """Returns collectives before the arrivals pass, in which there is no timeline beside which they could be drawn."""
    if collectives is None or recorded is None:
        return collectives
    import polars as pl  # takes a while: not imported if there are no collectives

    first = recorded.filter(pl.col("pass") == ARRIVALS)["step"].min()
    return collectives if first is None else collectives.where(
        pl.col("step").is_null() | (pl.col("step") < pl.lit(first)))


def drawn_communication(clock: Clock, collectives: CollectivePieces | None, chain: pl.DataFrame | None,
                        selections: Mapping[int, EventSelection], steps: Mapping[int, Steps],
                        origin_ns: int) -> Drawing | None:
    """Draws communication and critical paths, unless the category of what the merge adds is excluded."""
    if (collectives is None and chain is None) or any(
            one.categories is not None and DRAWN not in one.categories for one in selections.values()):
        return None
    from distprof.merge.chrome.drawing.collectives import DrawOptions, draw_collectives
    from distprof.merge.cost.measured_parts import CollectivePieces
    from distprof.merge.run.tables import empty

    wanted = {}
    for rank, selection in selections.items():
        line, (starts, ends, numbers) = clock.line(rank), steps[rank]
        windows = None if selection.windows_ns is None else selection.windows_ns.map(line.to_common)
        wanted[rank] = DrawOptions(windows_ns=windows, min_duration_ns=selection.min_duration_ns,
                                   step_ns=dict(zip(numbers.tolist(), (ends - starts).tolist(), strict=True)))
    if collectives is None:
        collectives = CollectivePieces.held(empty(MERGED_COLLECTIVES))
    found = draw_collectives(collectives, clock, wanted, origin_ns)
    if chain is None:
        return found
    from distprof.merge.chrome.drawing.chains import draw_chains

    return replace(found, chains=draw_chains(chain, wanted, origin_ns, found.num_arrows))
