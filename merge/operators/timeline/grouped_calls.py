"""Groups the calls of one rank: a row for all calls that share operator, shapes, module, phase and step.

Uses only numpy, because merging does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.arrays import Array, Flags, Integers
from distprof.merge.activity.device.commands import GRAPHS, of_names
from distprof.merge.activity.markers import AUTOGRAD, STEP
from distprof.merge.operators.one_key import one_key, sorted_places
from distprof.merge.operators.places import PHASES, Places, places_of
from distprof.merge.operators.shapes import UNKNOWN, ShapeCosts, ShapeCoverage, shape_costs, strict, tensors_of
from distprof.merge.operators.timeline.captured_graphs import Capture
from distprof.merge.operators.timeline.device_times import launchers
from distprof.merge.operators.timeline.graph_replays import Replays, with_captured
from distprof.merge.operators.timeline.memory_changes import MemoryChanges, changes_within
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import (
    ANNOTATION,
    MEMCPY,
    MEMSET,
    NUM_HOST,
    OPERATOR,
    RUNTIME,
    TYPES,
    RankTimeline,
    calls_of_modules,
    with_modules,
)
from distprof.merge.scan.scanned_columns import thread_of

COSTS = ("flops", "causal_flops", "bytes")
MEMORY = ("self_allocated_bytes", "allocated_bytes", "self_freed_bytes", "freed_bytes")
"""Bytes of memory, if the timeline has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedCalls:
    """A row per group, in the order of their first calls."""

    columns: Mapping[str, Integers]
    """Numbers by column; `UNKNOWN` if there is none."""
    words: Mapping[str, Sequence[str | None]]
    """Texts that the numbers of some columns stand for."""
    by_shapes: ShapeCoverage | None
    """None if there are no shapes, or they were not requested."""
    replays: Replays

    @property
    def num_rows(self) -> int:
        return len(self.columns["op"])


def grouped_calls(timeline: RankTimeline, windows: Sequence[tuple[int, int, int]] | None, *,
                  num_frames: int = 0, changes: MemoryChanges | None = None, by_shapes: bool = False,
                  captures: Sequence[Capture] = ()) -> GroupedCalls:
    """Sums the calls of a timeline.

    The arguments are those of `rank_operators`.
    """
    stacks, stack = _stacks(timeline, num_frames)
    before, timeline = timeline, with_modules(timeline)
    stack = stack[np.isin(before.place, timeline.place)]
    timeline, replay, replays = with_captured(timeline, captures)
    copied = replay >= 0
    if copied.any():
        stacks_of, stack = stack, np.full(len(copied), UNKNOWN)
        stack[~copied] = stacks_of
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
    places, launcher = places_of(timeline, nesting).within(replay), launchers(timeline, nesting)
    alike = _alike(timeline)
    passed_on = _passed_on(timeline, nesting, alike)
    keys = _keys(timeline, places, launcher, windows, of_launcher(timeline.start_ns, replay)) | {
        "stack": of_launcher(stack, launcher)}
    times = _times(timeline, nesting, launcher, passed_on, copied)
    memory = _memory(timeline, nesting, changes, passed_on)
    costs = shape_costs(timeline, nesting, alike, passed_on) if by_shapes else None
    amounts = dict(zip(COSTS, _amounts(timeline, costs), strict=True))
    calls = ~passed_on & ~(copied & (timeline.type == RUNTIME))
    columns = _sums(np.flatnonzero(calls), keys, times | memory, amounts)
    shapes: list[str | None] = [None] * len(timeline.texts)
    for text in _shapes(timeline):
        shapes[text] = strict(timeline.texts[text])
    words: dict[str, Sequence[str | None]] = {
        "op": timeline.names, "type": TYPES, "shapes": shapes,
        "dtypes": timeline.texts, "launched_by": timeline.names, "phase": PHASES, "module_path": places.paths,
        "class_name": places.classes, "stack": stacks,
        "stream": _streams(timeline)}
    unknown = np.full(len(columns["op"]), UNKNOWN)
    return GroupedCalls(
        columns={**dict.fromkeys(MEMORY, unknown), **columns, "class_name": columns["module_path"]}, words=words,
        by_shapes=None if costs is None else costs.coverage(
            timeline, ~passed_on, times["self_host_ns"], times["self_device_ns"]), replays=replays)


def _streams(timeline: RankTimeline) -> list[str]:
    """Returns the profiler's name of each thread that is a stream: `7`, or with several devices `7 of device 1`."""
    used = set(np.unique(timeline.thread[timeline.type >= NUM_HOST]).tolist())
    names = [thread_of(key.encode()) if number in used else ("", "") for number, key in enumerate(timeline.threads)]
    is_one = len({names[number][0] for number in used}) < 2
    return [f"{stream.split()[-1]}{'' if is_one else f' of device {device}'}" if stream.strip() else stream
            for device, stream in names]


def _amounts(timeline: RankTimeline, costs: ShapeCosts | None) -> Sequence[Integers | None]:
    """Returns `COSTS` per slice, from its shapes or, for copies and fills, from the bytes moved, or None."""
    moved = np.flatnonzero(np.isin(timeline.type, (MEMCPY, MEMSET)) & (timeline.copied >= 0))
    if costs is None and not len(moved):
        return (None,) * len(COSTS)
    unknown = np.full(len(timeline.type), UNKNOWN)
    flops, causal_flops, num_bytes = (unknown.copy() for _ in COSTS) if costs is None else (
        values.copy() for values in (costs.flops, costs.causal_flops, costs.num_bytes))
    flops[moved], causal_flops[moved], num_bytes[moved] = 0, 0, timeline.copied[moved]
    return flops, causal_flops, num_bytes


def _stacks(timeline: RankTimeline, num_frames: int) -> tuple[Sequence[str | None], Integers]:
    """Returns stacks, and for each slice the number of its stack; -1 if they are not requested."""
    if not num_frames:
        return [], np.full(len(timeline.name), UNKNOWN)
    from distprof.merge.operators.timeline.stacks import PythonStacks  # needs polars, which merging does without

    return PythonStacks(timeline).innermost(num_frames)


def _sums(rows: Integers, keys: Mapping[str, Integers], times: Mapping[str, Integers],
          amounts: Mapping[str, Integers | None]) -> (dict[str, Integers]):
    """Groups these rows: returns the keys of each group, its number of rows, and its sums."""
    key = one_key([*keys.values(), *(values == UNKNOWN for values in amounts.values() if values is not None)])[rows]
    order = sorted_places(key)
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))  # keys count from 0
    first = order[begins]
    turn = np.argsort(first)
    order, sizes = rows[order], np.diff(begins, append=len(rows))

    def added(values: Array, how: np.ufunc = np.add) -> Array:
        return how.reduceat(values[order], begins)[turn] if len(begins) else values[:0]

    duration = times["duration_ns"]
    unknown = np.full(len(turn), UNKNOWN)
    return {**{name: values[rows[first]][turn] for name, values in keys.items()}, "calls": sizes[turn],
            **{name: added(values) for name, values in times.items()},
            "squared_ns": added(duration.astype(np.float64) ** 2), "min_ns": added(duration, np.minimum),
            "max_ns": added(duration, np.maximum),
            **{name: unknown if values is None else np.maximum(added(values), UNKNOWN)
               for name, values in amounts.items()}}


def _keys(timeline: RankTimeline, places: Places, launcher: Integers,
          windows: Sequence[tuple[int, int, int]] | None, start_ns: Integers) -> dict[str, Integers]:
    by_operator = _by_operator(timeline, launcher)
    return {
        "op": timeline.name, "type": timeline.type, "shapes": timeline.shapes, "dtypes": timeline.dtypes,
        "module_path": of_launcher(places.module, launcher), "phase": of_launcher(places.phase, launcher),
        "step": launch_steps(timeline, windows, launcher, start_ns),
        "stream": np.where(timeline.type >= NUM_HOST, timeline.thread, -1),
        "launched_by": np.where(by_operator | _by_graph(timeline, launcher), timeline.name[launcher], -1)}


def _by_operator(timeline: RankTimeline, launcher: Integers) -> Any:
    """Returns False for what a runtime call outside of all operators launched: that counts by itself."""
    return (launcher >= 0) & (timeline.type[launcher] == OPERATOR)


def _by_graph(timeline: RankTimeline, launcher: Integers) -> Flags:
    return (launcher >= 0) & of_names(GRAPHS, timeline.names)[timeline.name[launcher]]


def launch_steps(timeline: RankTimeline, windows: Sequence[tuple[int, int, int]] | None, launcher: Integers,
                 start_ns: Integers) -> Integers:
    """Returns the step of each slice; -1 for commands without a launch: a device may run them in a later step.

    Args:
        timeline: The slices.
        windows: Start, end and number of the steps; None: the trace marks them.
        launcher: Row of what launched each slice; -1 for none.
        start_ns: When each slice of the host began, or was replayed.
    """
    step = steps_of(timeline, windows, of_launcher(start_ns, launcher))
    has_steps = bool(marked_steps(timeline)) if windows is None else True
    return np.where((timeline.type >= NUM_HOST) & (launcher < 0) & has_steps, -1, step)


def of_launcher(values: Array, launcher: Integers) -> Array:
    """Returns each slice's value; for slices of a device, that of what launched them, if known."""
    return np.where(launcher >= 0, values[launcher], values)


def slice_costs(timeline: RankTimeline, nesting: Nesting) -> ShapeCosts | None:
    """Returns costs of each slice from its shapes; None if the trace has none."""
    alike = _alike(timeline)
    return shape_costs(timeline, nesting, alike, _passed_on(timeline, nesting, alike))


def _alike(timeline: RankTimeline) -> Integers:
    """Returns numbers that are equal for slices with the same name and tensors."""
    numbers, found = dict[str, int](), np.full(len(timeline.texts) + 1, -1, np.int64)
    for text in _shapes(timeline):
        found[text] = numbers.setdefault(tensors_of(timeline.texts[text]), len(numbers))
    return timeline.name * (len(found) + 1) + found[timeline.shapes]


def _shapes(timeline: RankTimeline) -> list[int]:
    """Returns the numbers of the texts that are shapes."""
    found: list[int] = np.unique(timeline.shapes[timeline.shapes >= 0]).tolist()
    return found


def _passed_on(timeline: RankTimeline, nesting: Nesting, alike: Integers) -> Flags:
    """Returns True for the only call of an operator by itself with the same tensors."""
    inside = np.flatnonzero((nesting.parent >= 0) & (timeline.type == OPERATOR))
    inside = inside[alike[inside] == alike[nesting.parent[inside]]]
    times = np.bincount(nesting.parent[inside], minlength=len(alike))
    found = np.zeros(len(alike), bool)
    found[inside[times[nesting.parent[inside]] == 1]] = True
    return found


def _times(timeline: RankTimeline, nesting: Nesting, launcher: Integers, passed_on: Flags,
           copied: Flags) -> dict[str, Integers]:
    host = timeline.type < NUM_HOST
    on_host = np.where(host & ~copied, timeline.duration_ns, 0)
    on_device = np.where(host, 0, timeline.duration_ns)
    launched, of_operators = (
        np.bincount(launcher[known], on_device[known], len(host)).astype(np.int64)
        for known in (launcher >= 0, _by_operator(timeline, launcher)))
    device_ns = nesting.with_inner(launched) + on_device + _of_backward(timeline, launched, copied)
    return {"duration_ns": np.where(copied, device_ns, timeline.duration_ns), "host_ns": on_host,
            "self_host_ns": _self_host_ns(timeline, nesting, on_host, passed_on),
            "device_ns": device_ns,
            "self_device_ns": nesting.lifted(of_operators, passed_on) + on_device}


def _self_host_ns(timeline: RankTimeline, nesting: Nesting, on_host: Integers, passed_on: Flags) -> Integers:
    """Returns host time without nested calls. Calls of modules in an operator belong to it, as without these slices."""
    own, is_module = nesting.without_inner(on_host), calls_of_modules(timeline)
    return np.where(is_module, own, nesting.lifted(own, passed_on | is_module))


def _of_backward(timeline: RankTimeline, launched: Integers, copied: Flags) -> Integers:
    """Returns device time launched by autograd's threads during annotations of the thread that waits for them, as on
    GPUs.

    Args:
        timeline: The slices.
        launched: Device time that each slice launched itself.
        copied: True for slices of captures, which are left out.
    """
    found, host = np.zeros(len(launched), np.int64), (timeline.type < NUM_HOST) & ~copied
    engine = [number for number, name in enumerate(timeline.names) if name.startswith(AUTOGRAD)]
    threads = np.unique(timeline.thread[host & np.isin(timeline.name, engine)])
    of_engine = host & np.isin(timeline.thread, threads)
    rows = np.flatnonzero((timeline.type == ANNOTATION) & ~of_engine & ~copied)
    if not len(threads) or len(np.unique(timeline.thread[rows])) != 1:
        return found  # with several threads, it is unknown which one called backward
    work = np.flatnonzero(of_engine & (launched > 0))
    work = work[np.argsort(timeline.start_ns[work], kind="stable")]
    until = np.concatenate(([0], np.cumsum(launched[work])))
    begin, end = (np.searchsorted(timeline.start_ns[work], times[rows]) for times in (
        timeline.start_ns, timeline.end_ns))
    found[rows] = until[end] - until[begin]
    return found


def _memory(timeline: RankTimeline, nesting: Nesting, changes: MemoryChanges | None, passed_on: Flags) -> (
        dict[str, Integers]):
    found = None if changes is None else changes_within(timeline, nesting, changes)
    return {} if found is None else {
        **{name: nesting.lifted(values, passed_on) for name, values in found.items()},
        **{name.removeprefix("self_"): nesting.with_inner(values) for name, values in found.items()}}


def steps_of(timeline: RankTimeline, windows: Sequence[tuple[int, int, int]] | None, start_ns: Integers) -> Integers:
    """Returns the step in which each slice starts, or was launched; -1 outside of all steps."""
    if windows is None:
        windows = marked_steps(timeline)
        if not windows:
            return np.zeros(len(start_ns), np.int64)
    if not windows:
        return np.full(len(start_ns), -1)
    starts, ends, numbers = (np.array(column, np.int64) for column in zip(*sorted(windows), strict=True))
    place = np.searchsorted(starts, start_ns, "right") - 1
    return np.where((place >= 0) & (start_ns < ends[place]), numbers[place], -1)


def marked_steps(timeline: RankTimeline) -> list[tuple[int, int, int]]:
    """Returns start, end and number of the steps that torch.profiler marks in a trace."""
    numbers = {name: int(text) for name, text in enumerate(one.removeprefix(STEP) for one in timeline.names)
               if timeline.names[name].startswith(STEP) and text.isdecimal() and len(text) < 19}
    rows = np.flatnonzero(np.isin(timeline.name, list(numbers)) & (timeline.type < NUM_HOST))
    found = zip(timeline.start_ns[rows].tolist(), timeline.end_ns[rows].tolist(), timeline.name[rows].tolist(),
                strict=True)
    return list({numbers[name]: (start, end, numbers[name]) for start, end, name in found}.values())
