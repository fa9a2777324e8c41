"""Lists what the devices of a rank ran, stream by stream in order, with what launched it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.arrays import Array, Flags, Integers
from distprof.contract.problems import Problem, Unreadable
from distprof.contract.tables import STEPS
from distprof.errors import DataError
from distprof.merge.operators.places import PHASES, places_of
from distprof.merge.operators.selection import Selection, in_modules, matching
from distprof.merge.operators.timeline.device_times import launchers
from distprof.merge.operators.timeline.grouped_calls import launch_steps, marked_steps, of_launcher
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, OPERATOR, RankTimeline, read_timeline
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import Loaded, read_table
from distprof.merge.run.timelines import for_each_rank, steps_of_timeline

Windows = Sequence[tuple[int, int, int]]
WORDS = ("name", "launched_by", "module_path", "phase")
AT_ONCE = 2
"""Ranks read concurrently: their slices are in memory together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTexts:
    """Commands of the devices of a rank: kernels, copies and fills."""

    rank: int
    rows: pl.DataFrame
    """The requested commands, by stream and start: `rank`, `WORDS`, `start_ns`, `end_ns`, and `text`, which is equal
    for consecutive commands on one stream that were launched in one step and, if operators are requested, in one call.
    """
    steps: Sequence[int]
    """Steps of all commands; `phases` likewise."""
    phases: Sequence[str]
    device_ns: int
    """Time of all commands in steps."""
    num_stepless: int
    """Number of commands that are in no step, although there are steps; they are left out."""
    stepless_ns: int
    problems: Sequence[Problem]


def run_texts(run: Run, selection: Selection) -> Iterator[DeviceTexts | Unreadable]:
    """Reads the timelines of a run, `with_timelines`.

    Args:
        run: The run as it was opened.
        selection: Which commands; `op` may match any operator around the launch.

    Yields:
        What was found for each rank, or that its timeline cannot be read.
    """
    steps = None if run.kind == "traces" else read_table(run, STEPS)
    ranks = [rank for rank in run.ranks if rank.trace is not None]
    yield from for_each_rank("read", _read, ranks, lambda rank: (_windows(steps, rank), selection), threads=AT_ONCE)


def _windows(steps: Loaded | None, rank: Rank) -> Windows | None:
    return None if steps is None else [
        *steps_of_timeline(steps.rows, rank).select("start_ns", "end_ns", "step").iter_rows()]


def _read(rank: Rank, windows: Windows | None, selection: Selection) -> DeviceTexts | Unreadable:
    try:
        return device_texts(rank.number, read_timeline(rank), windows, selection)
    except DataError as error:
        return Unreadable(rank=rank.number, detail=str(error))


def device_texts(rank: int, timeline: RankTimeline, windows: Windows | None, selection: Selection) -> DeviceTexts:
    """Returns the commands of a rank.

    Args:
        rank: Its number.
        timeline: Its slices.
        windows: Start, end and number of its steps; None: the trace marks them, or is a single step.
        selection: Which commands.
    """
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
    launcher, places = launchers(timeline, nesting), places_of(timeline, nesting)
    step = launch_steps(timeline, windows, launcher, timeline.start_ns)
    call = _calls(timeline, nesting, launcher, selection)
    device = np.flatnonzero(timeline.type >= NUM_HOST)
    in_step = step[device] >= 0
    by = launcher[device]
    every = pl.DataFrame({
        "rank": np.full(len(device), rank), "name": _words(timeline.names, timeline.name[device]),
        "launched_by": _words(timeline.names, np.where(by >= 0, timeline.name[by], -1)),
        "module_path": _words(places.paths, of_launcher(places.module, launcher)[device]),
        "phase": _words(PHASES, of_launcher(places.phase, launcher)[device]),
        "start_ns": timeline.start_ns[device], "end_ns": timeline.end_ns[device]})
    held = in_step & (call[device] >= 0) & _asked(every, step[device], selection)
    text = _texts(held, timeline.thread[device], step[device], call[device])
    ran = timeline.duration_ns[device]
    is_marked = windows is not None or bool(marked_steps(timeline))
    return DeviceTexts(
        rank=rank, rows=every.with_columns(text=text).filter(held),
        steps=np.unique(step[device][in_step]).tolist() if is_marked else [],
        phases=every["phase"].drop_nulls().unique().sort().to_list(), device_ns=int(ran[in_step].sum()),
        num_stepless=int((~in_step).sum()), stepless_ns=int(ran[~in_step].sum()), problems=timeline.problems)


def _words(known: Sequence[str | None], numbers: Array) -> pl.Series:
    words = pl.Series([*known, None], dtype=pl.String).cast(pl.Categorical)
    return words.gather(np.where(numbers < 0, len(known), numbers))


def _calls(timeline: RankTimeline, nesting: Nesting, launcher: Integers, selection: Selection) -> Integers:
    """Returns the row of the outermost requested operator around the launch of each device slice; -1 if there is none,
    0 if no operators are requested."""
    if selection.op is None:
        return np.zeros(len(launcher), np.int64)
    names = set(matching(selection.op, timeline.names))
    fits = np.array([name in names for name in timeline.names], bool)[timeline.name] & (timeline.type == OPERATOR)
    found = np.where(fits, np.arange(len(fits)), -1)
    for rows, parents in nesting.downwards():
        outer = np.where(parents >= 0, found[parents], -1)
        found[rows] = np.where(outer >= 0, outer, found[rows])
    return np.where(launcher >= 0, found[launcher], -1)


def _asked(every: pl.DataFrame, step: Integers, selection: Selection) -> Flags:
    held = np.ones(len(every), bool)
    if selection.steps:
        held &= np.isin(step, selection.steps)
    if selection.phases:
        held &= every["phase"].is_in([*selection.phases]).fill_null(value=False).to_numpy()
    if selection.module is not None:
        paths = in_modules(selection.module, every["module_path"].drop_nulls().unique())
        held &= every["module_path"].is_in(paths).fill_null(value=False).to_numpy()
    return held


def _texts(held: Flags, thread: Integers, step: Integers, call: Integers) -> Integers:
    """Returns a number for each run of commands without a boundary between them; it ascends."""
    border = ~held
    border[1:] |= ~held[:-1]
    for values in (thread, step, call):
        border[1:] |= np.diff(values) != 0
    return np.cumsum(border).astype(np.int64)
