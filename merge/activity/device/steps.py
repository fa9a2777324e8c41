"""Steps of a device: from the first command of one step of the host to the first of the next.

A command belongs to the step in which the host sent it, whenever it runs.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.merge.activity.device.commands import COMMUNICATION, COMPUTE, COPY, Commands
from distprof.merge.activity.device.idleness import CAUSES, Idleness
from distprof.merge.activity.intervals import NOTHING, Intervals

PARTS = ("compute", "waiting", "moving", "copies", "idle")
"""What a step of a device is split into; they add up to it. `waiting` and `moving` are exposed communication: kernels
that communicate while nothing is computed, before and after the last rank had come. `copies`: copies and fills while
there is neither."""
BESIDE = ("overlapped", "communication", "after_sync", "in_graph")
SCHEMA = {"rank": pl.Int64, "device": pl.String, "step": pl.Int64, "start_ns": pl.Int64, "device_step_ns": pl.Int64,
          "is_whole": pl.Boolean, "is_marked": pl.Boolean, "commands": pl.Int64,
          **{f"{part}_ns": pl.Int64 for part in PARTS}, **{f"{cause}_idle_ns": pl.Int64 for cause in CAUSES},
          **{f"{one}_ns": pl.Int64 for one in BESIDE}, "message_waiting_ns": pl.Int64}
"""`device_step_ns`: to the first command of the next step; where none follows, `is_whole` is false, and it ends with
its last command, or with the step of the host if that is later. `is_marked` is false where the whole trace counts as
one step. `communication_ns`: when a kernel communicated, `overlapped_ns` the part of it in which something was
computed. Of the idle time, `after_sync_ns` is the part of `host_idle_ns` behind a synchronisation that had emptied the
queue, `in_graph_ns` the part of `unshown_idle_ns` that commands of graphs end."""
Span = tuple[int, int, int, bool]
"""A step of a device: number, start, end, and whether its end is the first command of the next one."""
OUTSIDE = {"rank": pl.Int64, "device": pl.String, "unsent": pl.Int64, "unsent_ns": pl.Int64, "outside": pl.Int64,
           "outside_ns": pl.Int64, "lost": pl.Int64, "launches": pl.Int64}
"""Commands that belong to no step, and how long they took: those whose call is not known, and those that were sent
outside of all steps. In the row of the first device of a rank: its launches of which the timeline has nothing, and all
of them."""


def step_of_commands(commands: Commands, windows: pl.DataFrame) -> Integers:
    """The step in which each command was sent; -1 for those that were not sent in any.

    Args:
        commands: Of a rank.
        windows: Its steps on the host by start: `step`, `start_ns` and `end_ns`.
    """
    if windows.is_empty():
        return np.full(len(commands.call), -1, np.int64)
    starts, ends, numbers = (windows[name].to_numpy() for name in ("start_ns", "end_ns", "step"))
    sent = commands.sent_ns
    place = np.searchsorted(starts, sent, "right") - 1
    inside = (commands.call >= 0) & (place >= 0) & (sent < ends[np.maximum(place, 0)])
    return np.where(inside, numbers[np.maximum(place, 0)], -1)


def spans_of(commands: Commands, step: Integers, windows: pl.DataFrame) -> list[Span]:
    """The steps of a device.

    Args:
        commands: Of one device.
        step: `step_of_commands` of them.
        windows: Steps of the host by start, with `is_marked`, false where the whole trace counts as one.
    """
    found, reach = list[Span](), 0
    numbers, ends, marked = (windows[name].to_list() for name in ("step", "end_ns", "is_marked"))
    firsts = {number: int(commands.start_ns[held].min()) for number in numbers if (held := step == number).any()}
    for place, number in enumerate(numbers):
        if number not in firsts:
            continue
        start = max(firsts[number], reach)
        following = numbers[place + 1] if place + 1 < len(numbers) else None
        is_whole = following == number + 1 and following in firsts
        last = int(commands.end_ns[step == number].max())
        reach = firsts[following] if is_whole else max(last, ends[place]) if marked[place] else last
        reach = max(reach, start)
        found.append((number, start, reach, is_whole))
    return found


def parts_of_spans(commands: Commands, idleness: Idleness, spans: list[Span], waits: Intervals,
                   messages: Intervals = NOTHING) -> dict[str, Integers]:
    """How long each part of each span takes, by column.

    Args:
        commands: Of one device, all of them.
        idleness: When it was idle, and why.
        spans: See `spans_of`.
        waits: When the rank was in a collective and another one was not.
        messages: The part of it in sends and receives.
    """
    computing, communicating, copying = (commands.during(kind) for kind in (COMPUTE, COMMUNICATION, COPY))
    exposed = communicating - computing
    starts, ends = (np.array([span[place] for span in spans], np.int64) for place in (1, 2))
    sets = {"compute": computing, "waiting": exposed & waits, "moving": exposed - waits,
            "copies": copying - computing - communicating, "overlapped": communicating & computing,
            "communication": communicating, "message_waiting": exposed & waits & messages}
    found = {f"{name}_ns": times.within(starts, ends) for name, times in sets.items()}
    busy = sum(found[f"{part}_ns"] for part in PARTS[:-1])
    return {**found, "idle_ns": ends - starts - busy, **idleness.within(starts, ends)}
