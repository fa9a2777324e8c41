"""Operators of one rank as a table: a row for all calls that share operator, shapes, module, phase and step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.merge.activity.markers import STEP
from distprof.merge.operators.device_times import launchers
from distprof.merge.operators.memory_changes import MemoryChanges, changes_within
from distprof.merge.operators.nesting import Nesting
from distprof.merge.operators.places import PHASES, Places, places_of
from distprof.merge.operators.rank_timeline import NUM_HOST, OPERATOR, PYTHON, TYPES, RankTimeline
from distprof.merge.operators.shapes import strict, tensors_of
from distprof.merge.operators.stacks import PythonStacks

KEYS = {"op": pl.String(), "type": pl.String(), "shapes": pl.String(), "dtypes": pl.String(),
        "module_path": pl.String(), "class_name": pl.String(), "phase": pl.String(), "step": pl.Int64(),
        "stream": pl.String(), "stack": pl.String(), "launched_by": pl.String()}
"""What calls of a row share. `stream`: of a device; `launched_by`: the operator of a slice of a device, if known;
`stack`: the functions of Python around the calls, innermost first, null where that was not asked for."""
SUMS = ("calls", "host_ns", "self_host_ns", "device_ns", "self_device_ns", "squared_ns")
MEMORY = ("self_allocated_bytes", "allocated_bytes", "self_freed_bytes", "freed_bytes")
"""Bytes of memory, where the timeline has them."""
SCHEMA = {"rank": pl.Int64(), **KEYS, **dict.fromkeys(SUMS, pl.Int64()), "squared_ns": pl.Float64(),
          "min_ns": pl.Int64(), "max_ns": pl.Int64(), **dict.fromkeys(MEMORY, pl.Int64())}


def rank_operators(rank: int, timeline: RankTimeline, windows: Sequence[tuple[int, int, int]] | None, *,
                   num_frames: int = 0, changes: MemoryChanges | None = None) -> pl.DataFrame:
    """The table of a rank.

    Args:
        rank: Its number.
        timeline: Its slices.
        windows: Start, end and number of its steps; None: the trace has marks of them, or is one step.
        num_frames: Functions in `stack`; the timeline has calls of Python where it is above 0.
        changes: Of memory; None or none: `MEMORY` is null.

    Returns:
        `SCHEMA`: `calls`; times in ns, added up over calls, on the host and on a device, with and without what lies
        inside; `squared_ns`, `min_ns` and `max_ns` of the calls' durations. An operator that passes on to itself, with
        the same tensors, is one call.
    """
    held = timeline.type != PYTHON
    stacks, stack = PythonStacks(timeline).innermost(num_frames) if num_frames else ([], np.full(len(held), -1))
    timeline = timeline.where(held) if num_frames else timeline
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
    places, launcher = places_of(timeline, nesting), launchers(timeline, nesting)
    passed_on = _passed_on(timeline, nesting)
    keys = _keys(timeline, places, launcher, windows) | {"stack": _of_launcher(stack[held], launcher)}
    memory = _memory(timeline, nesting, changes, passed_on)
    rows = pl.DataFrame({**keys, **_times(timeline, nesting, launcher, passed_on), **memory}).filter(
        pl.Series(~passed_on))
    duration = pl.col("duration_ns")
    found = rows.group_by(list(keys), maintain_order=True).agg(
        calls=pl.len().cast(pl.Int64), **{name: pl.col(name).sum() for name in SUMS[1:5]},
        squared_ns=(duration.cast(pl.Float64) ** 2).sum(), min_ns=duration.min(), max_ns=duration.max(),
        **{name: pl.col(name).sum() if name in memory else pl.lit(None) for name in MEMORY})
    return _in_words(found, timeline, places, stacks).select(
        (pl.lit(rank) if name == "rank" else pl.col(name)).cast(kind).alias(name) for name, kind in SCHEMA.items())


def _keys(timeline: RankTimeline, places: Places, launcher: Any,
          windows: Sequence[tuple[int, int, int]] | None) -> dict[str, Any]:
    known = launcher >= 0
    return {
        "op": timeline.name, "type": timeline.type, "shapes": timeline.shapes, "dtypes": timeline.dtypes,
        "module_path": _of_launcher(places.module, launcher), "phase": _of_launcher(places.phase, launcher),
        "step": steps_of(timeline, windows, _of_launcher(timeline.start_ns, launcher)),
        "stream": np.where(timeline.type >= NUM_HOST, timeline.thread, -1),
        "launched_by": np.where(known, timeline.name[launcher], -1)}


def _of_launcher(values: Any, launcher: Any) -> Any:
    """Each slice's value; of slices of a device that of what launched them, if that is known."""
    return np.where(launcher >= 0, values[launcher], values)


def _passed_on(timeline: RankTimeline, nesting: Nesting) -> Any:
    """True for the only call of an operator by itself with the same tensors."""
    tensors = {text: number for number, text in enumerate(dict.fromkeys(map(tensors_of, timeline.texts)))}
    number = np.array([tensors[tensors_of(text)] for text in timeline.texts] + [-1], np.int64)
    alike = timeline.name * (len(number) + 1) + number[timeline.shapes]
    inside = np.flatnonzero((nesting.parent >= 0) & (timeline.type == OPERATOR))
    inside = inside[alike[inside] == alike[nesting.parent[inside]]]
    times = np.bincount(nesting.parent[inside], minlength=len(alike))
    found = np.zeros(len(alike), bool)
    found[inside[times[nesting.parent[inside]] == 1]] = True
    return found


def _times(timeline: RankTimeline, nesting: Nesting, launcher: Any, passed_on: Any) -> dict[str, Any]:
    host = timeline.type < NUM_HOST
    on_host = np.where(host, timeline.duration_ns, 0)
    on_device = np.where(host, 0, timeline.duration_ns)
    launched = np.bincount(launcher[launcher >= 0], on_device[launcher >= 0], len(host)).astype(np.int64)
    return {"duration_ns": timeline.duration_ns, "host_ns": on_host,
            "self_host_ns": nesting.lifted(nesting.without_inner(on_host), passed_on),
            "device_ns": nesting.with_inner(launched) + on_device,
            "self_device_ns": nesting.lifted(launched, passed_on) + on_device}


def _memory(timeline: RankTimeline, nesting: Nesting, changes: MemoryChanges | None, passed_on: Any) -> dict[str, Any]:
    found = None if changes is None else changes_within(timeline, nesting, changes)
    return {} if found is None else {
        **{name: nesting.lifted(values, passed_on) for name, values in found.items()},
        **{name.removeprefix("self_"): nesting.with_inner(values) for name, values in found.items()}}


def steps_of(timeline: RankTimeline, windows: Sequence[tuple[int, int, int]] | None, start_ns: Any) -> Any:
    """Number of the step in which each slice starts, or was launched; -1 outside of all."""
    if windows is None:
        windows = _marked(timeline)
        if not windows:
            return np.zeros(len(start_ns), np.int64)
    if not windows:
        return np.full(len(start_ns), -1)
    starts, ends, numbers = (np.array(column, np.int64) for column in zip(*sorted(windows), strict=True))
    place = np.searchsorted(starts, start_ns, "right") - 1
    return np.where((place >= 0) & (start_ns < ends[place]), numbers[place], -1)


def _marked(timeline: RankTimeline) -> list[tuple[int, int, int]]:
    numbers = {name: int(text) for name, text in enumerate(one.removeprefix(STEP) for one in timeline.names)
               if timeline.names[name].startswith(STEP) and text.isdecimal() and len(text) < 19}
    rows = np.flatnonzero(np.isin(timeline.name, list(numbers)) & (timeline.type < NUM_HOST))
    found = zip(timeline.start_ns[rows].tolist(), timeline.end_ns[rows].tolist(), timeline.name[rows].tolist(),
                strict=True)
    return list({numbers[name]: (start, end, numbers[name]) for start, end, name in found}.values())


def _in_words(rows: pl.DataFrame, timeline: RankTimeline, places: Places, stacks: Sequence[str | None]) -> pl.DataFrame:
    """Texts in place of numbers."""
    shapes, dtypes = [strict(text) for text in timeline.texts], timeline.texts
    threads = {number: str(number) for number in rows["stream"].unique().to_list()}
    words = {"op": timeline.names, "type": TYPES, "shapes": shapes, "dtypes": dtypes, "launched_by": timeline.names,
             "phase": PHASES, "module_path": places.paths, "class_name": places.classes, "stack": stacks}
    rows = rows.with_columns(class_name="module_path")
    return rows.with_columns(
        *(_word(name, known) for name, known in words.items()),
        pl.col("stream").replace_strict(threads, return_dtype=pl.String).alias("stream"),
        pl.when(pl.col("step") >= 0).then("step").alias("step"),
    ).with_columns(pl.when(pl.col("type").is_in(TYPES[NUM_HOST:])).then("stream").alias("stream"))


def _word(column: str, known: Sequence[str | None]) -> pl.Expr:
    words = pl.lit(pl.Series("words", [*known, None], pl.String))
    index = pl.when(pl.col(column) >= 0).then(pl.col(column)).otherwise(len(known))
    return words.gather(index).alias(column)

