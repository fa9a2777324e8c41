"""Queues of devices: commands that the host has launched and that have not begun; and all that devices did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from distprof.arrays import Array, Integers
from distprof.merge.activity.device.commands import commands_of
from distprof.merge.activity.device.rank_device import NO_DEVICES, WINDOWS, DeviceSteps, OnHost, device_steps
from distprof.merge.operators.timeline.device_times import launches
from distprof.merge.operators.timeline.grouped_calls import marked_steps
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, RUNTIME, TYPES, RankTimeline
from distprof.merge.scan.scanned_columns import NONE

QUEUE = {name: pl.Int64() for name in ("rank", "step", "commands", "short", "delay_ns", "longest_ns", "queued_ns",
                                       "deepest", "full_ns", "span_ns", "unsent")}
"""Columns of `device_queue`."""
FULL = 1024
"""Capacity of a CUDA stream's queue, in commands: if it is full, the host waits in the next launch."""
Windows = Sequence[tuple[int, int, int]]
"""Start, end and number of steps."""


def device_queue(rank: int, timeline: RankTimeline, windows: Windows | None) -> pl.DataFrame:
    """Returns the queue of a rank's device, step by step.

    Args:
        rank: Number of the rank.
        timeline: Its slices.
        windows: Start, end and number of its steps; None if the trace marks them, or is one step.

    Returns:
        `QUEUE`, without rows for a rank without a device. `commands`: runtime calls in the step that launched
        something; `short`: those that took longer than what they launched; `delay_ns`: from the end of each call to the
        begin of the first command that it launched, summed, 0 if that began earlier; `longest_ns`: the longest delay.
        `queued_ns`: time in the step in which commands were in the queue, summed over commands; `deepest`: largest
        number in it at a time; `full_ns`: time in which a stream had at least `FULL`, summed over streams; `span_ns`:
        duration of the host's step; `unsent`: device slices in all steps whose launch is not in the timeline.
    """
    device, calls = np.flatnonzero(timeline.type >= NUM_HOST), np.flatnonzero(timeline.type == RUNTIME)
    if not len(device):
        return pl.DataFrame(schema=QUEUE)
    call = launches(timeline, device, calls)
    sent, sent_ns, begin_ns, ran_ns, stream = _commands(timeline, device[call >= 0], call[call >= 0])
    start_ns, end_ns = timeline.start_ns[device], timeline.end_ns[device]
    if windows is None:
        first = int(np.concatenate((sent, start_ns)).min())
        windows = marked_steps(timeline) or [(first, int(end_ns.max()), 0)]
    waits = begin_ns > sent_ns
    rows = []
    for low, high, step in windows:
        mine = (sent >= low) & (sent < high)
        delay = np.maximum(begin_ns - sent_ns, 0)[mine]
        queued = _clipped(sent_ns[waits], begin_ns[waits], low, high)
        short = int((ran_ns < sent_ns - sent)[mine].sum())
        rows.append((rank, step, int(mine.sum()), short, int(delay.sum()), int(delay.max(initial=0)),
                     int((queued[1] - queued[0]).sum()), _deepest(*queued),
                     _full(sent_ns[waits], begin_ns[waits], stream[waits], low, high), high - low,
                     int((call < 0).sum())))
    return pl.DataFrame(rows, schema=QUEUE, orient="row")


def queue_depths(timeline: RankTimeline) -> Iterator[tuple[str, Integers, Integers]]:
    """Counts the commands in the queue of each stream: from when their calls returned until the first of them began.

    Yields:
        The stream; times of changes in ns since the epoch, in order; and the number of commands from then on.
    """
    device, calls = np.flatnonzero(timeline.type >= NUM_HOST), np.flatnonzero(timeline.type == RUNTIME)
    call = launches(timeline, device, calls)
    _, sent_ns, begin_ns, _, stream = _commands(timeline, device[call >= 0], call[call >= 0])
    waits = begin_ns > sent_ns
    for number in np.unique(stream[waits]):
        mine = waits & (stream == number)
        at, depth = _depths(sent_ns[mine], begin_ns[mine])
        last = np.append(at[1:] != at[:-1], True)  # of several changes at once, the last one counts
        yield timeline.threads[number], at[last], depth[last]


def summed_queues(queues: pl.DataFrame) -> pl.DataFrame:
    """Returns a row per rank, summed over the remaining steps, with `mean_delay_ns` and `mean_depth`."""
    return queues.group_by("rank").agg(
        pl.col("commands", "short", "delay_ns", "queued_ns", "full_ns", "span_ns").sum(),
        pl.col("longest_ns", "deepest", "unsent").max()).with_columns(
            mean_delay_ns=pl.when(pl.col("commands") > 0).then(pl.col("delay_ns") / pl.col("commands")),
            mean_depth=pl.when(pl.col("span_ns") > 0).then(pl.col("queued_ns") / pl.col("span_ns"))).sort("rank")


def _commands(timeline: RankTimeline, device: Array, call: Array) -> (
        tuple[Integers, Integers, Integers, Integers, Integers]):
    """Returns, for each call that launched something: its start, its end, when the first of its slices began, how long
    all of them ran, and the stream of the first."""
    order = np.lexsort((timeline.start_ns[device], call))
    rows, first = np.unique(call[order], return_index=True)
    ran = np.add.reduceat(timeline.duration_ns[device[order]], first) if len(first) else np.empty(0, np.int64)
    begun = device[order[first]]
    return timeline.start_ns[rows], timeline.end_ns[rows], timeline.start_ns[begun], ran, timeline.thread[begun]


def _clipped(start: Integers, end: Integers, low: int, high: int) -> tuple[Integers, Integers]:
    """Returns the parts of intervals within a window."""
    start, end = np.maximum(start, low), np.minimum(end, high)
    return start[start < end], end[start < end]


def _full(start: Integers, end: Integers, stream: Array, low: int, high: int, full: int = FULL) -> int:
    """Returns how long streams had at least `full` intervals at a time within a window, summed over streams."""
    total = 0
    for number in np.unique(stream):
        first, last = _clipped(start[stream == number], end[stream == number], low, high)
        if len(first) >= full:
            at, depth = _depths(first, last)
            total += int((np.diff(at) * (depth[:-1] >= full)).sum())
    return total


def _deepest(start: Integers, end: Integers) -> int:
    """Returns the largest number of intervals at a time."""
    return int(_depths(start, end)[1].max(initial=0))


def _depths(start: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Returns ends and starts of intervals in order, and the number of open intervals after each; ends precede
    starts."""
    at = np.concatenate((end, start))
    order = np.argsort(at, kind="stable")
    return at[order], np.cumsum(np.repeat([-1, 1], [len(end), len(start)])[order])


def devices_of_timeline(rank: int, timeline: RankTimeline,
                        windows: Sequence[tuple[int, int, int]] | None) -> DeviceSteps:
    """Determines what the devices of a rank did in its steps, without what its host did meanwhile.

    Args:
        rank: Number of the rank.
        timeline: Its slices.
        windows: Start, end and number of its steps; None if the trace marks them, or is one step.
    """
    commands = commands_of(_slices(timeline))
    if commands is None:
        return NO_DEVICES
    known = marked_steps(timeline) if windows is None else windows
    rows = [(step, start, end, True) for start, end, step in known]
    if windows is None and not rows:
        rows = [(0, int(timeline.start_ns.min()), int(timeline.end_ns.max()), False)]
    return device_steps(rank, commands, pl.DataFrame(rows, schema=WINDOWS, orient="row"), OnHost())


def _slices(timeline: RankTimeline) -> pl.DataFrame:
    """Returns commands and runtime calls in the form that `commands_of` needs."""
    rows = np.flatnonzero((timeline.type >= NUM_HOST) | (timeline.type == RUNTIME))
    processes = [thread.split(" ")[0] for thread in timeline.threads]
    names, types, threads, process = (pl.Series(words, dtype=pl.String) for words in (
        timeline.names, TYPES, timeline.threads, processes))
    return pl.DataFrame({
        "name": names.gather(timeline.name[rows]), "category": types.gather(timeline.type[rows]),
        "start_ns": timeline.start_ns[rows], "duration_ns": timeline.duration_ns[rows],
        "correlation": timeline.correlation[rows], "process": process.gather(timeline.thread[rows]),
        "thread": threads.gather(timeline.thread[rows]),
    }).with_columns(correlation=pl.when(pl.col("correlation") != NONE).then("correlation"))
