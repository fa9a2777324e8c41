"""What the devices of a rank did, as its whole timeline shows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from distprof.merge.activity.device.commands import commands_of
from distprof.merge.activity.device.rank_device import NO_DEVICES, WINDOWS, DeviceSteps, OnHost, device_steps
from distprof.merge.operators.timeline.grouped_calls import marked_steps
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, RUNTIME, TYPES, RankTimeline
from distprof.merge.scan.scanned_columns import NONE


def devices_of_timeline(rank: int, timeline: RankTimeline,
                        windows: Sequence[tuple[int, int, int]] | None) -> DeviceSteps:
    """What its devices did in its steps, without what its host did meanwhile.

    Args:
        rank: Its number.
        timeline: Its slices.
        windows: Start, end and number of its steps; None: the trace has marks of them, or is one step.
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
    """Commands and calls of the runtime, as `commands_of` needs them."""
    rows = np.flatnonzero((timeline.type >= NUM_HOST) | (timeline.type == RUNTIME))
    names, types, threads = (pl.Series(words, dtype=pl.String) for words in (timeline.names, TYPES, timeline.threads))
    thread = threads.gather(timeline.thread[rows])
    return pl.DataFrame({
        "name": names.gather(timeline.name[rows]), "category": types.gather(timeline.type[rows]),
        "start_ns": timeline.start_ns[rows], "duration_ns": timeline.duration_ns[rows],
        "correlation": timeline.correlation[rows], "process": thread.str.split(" ").list.first(), "thread": thread,
    }).with_columns(correlation=pl.when(pl.col("correlation") != NONE).then("correlation"))
