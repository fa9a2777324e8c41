"""What each stream of a device waited for between its commands."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from distprof.merge.activity.device.commands import COMMUNICATION, COMPUTE, COPY, Commands
from distprof.merge.activity.device.idleness import (
    HANDOVER_NS,
    LATENCY_NS,
    Pauses,
    asked_of,
    pauses_of,
    synchronisations,
)
from distprof.merge.activity.device.steps import Span
from distprof.merge.activity.intervals import Intervals

AWAITED = {COMMUNICATION: "for_communication", COPY: "for_copy", COMPUTE: "for_kernel"}
WHILE = ("running", "host", "sync", *AWAITED.values(), "latency", "unshown", "unsent")
"""What a stream does. for_...: it waits for a command of another stream, by its kind; the others as for devices."""
STREAMS = {"rank": pl.Int64, "device": pl.String, "stream": pl.String, "step": pl.Int64, "commands": pl.Int64,
           **{f"{one}_ns": pl.Int64 for one in WHILE}}
"""What is left of a step lies before the first command of the stream or behind its last."""


def streams_of(commands: Commands, step: Any, spans: list[Span]) -> list[dict[str, Any]]:
    """A row for each stream and step with commands of the stream in the timeline.

    Args:
        commands: All of one device.
        step: `step_of_commands` of them.
        spans: Its steps.
    """
    starts, ends = (np.array([span[place] for span in spans], np.int64) for place in (1, 2))
    synchronising, found = synchronisations(commands), list[dict[str, Any]]()
    for stream in np.unique(commands.stream).tolist():
        mine = commands.stream == stream
        sets = _while_of(commands.where(mine), commands, synchronising)
        times = {f"{name}_ns": one.within(starts, ends).tolist() for name, one in sets.items()}
        found += [{"stream": commands.streams[stream], "step": span[0],
                   "commands": int(np.count_nonzero(step[mine] == span[0])),
                   **{name: values[place] for name, values in times.items()}} for place, span in enumerate(spans)]
    return found


def _while_of(mine: Commands, every: Commands, synchronising: Intervals) -> dict[str, Intervals]:
    pauses = pauses_of(mine)
    asked, known = asked_of(mine, pauses)
    # a call that returns behind its command was blocked by what that waited for
    sent = np.where(mine.end_ns[pauses.behind] <= asked, mine.sent_ns[pauses.behind], asked)
    late, since = (np.where(known, np.clip(times, pauses.starts, pauses.ends), pauses.starts)
                   for times in (asked, sent))
    awaited = np.where(known & _was_ordered(mine, pauses), _awaited(every, since, pauses.ends), -1)
    late = np.where(awaited >= 0, since, late)
    done = np.where(awaited >= 0, every.end_ns[awaited], late)
    held = np.select([~known, (awaited >= 0) | (pauses.ends - late <= LATENCY_NS)], ["unsent", "latency"], "unshown")
    host = Intervals.of(pauses.starts[known], late[known])
    sets = {"running": Intervals.of(mine.start_ns, mine.end_ns), "host": host - synchronising,
            "sync": host & synchronising}
    sets |= {name: Intervals.of(done[held == name], pauses.ends[held == name])
             for name in ("latency", "unshown", "unsent")}
    for kind, name in AWAITED.items():
        chosen = (awaited >= 0) & (every.kind[awaited] == kind)
        sets[name] = Intervals.of(late[chosen], done[chosen])
    return sets


def _awaited(every: Commands, since: Any, until: Any) -> Any:
    """The command that ended last in each of these times, just before their end; -1 for none."""
    order = np.argsort(every.end_ns, kind="stable")
    place = np.searchsorted(every.end_ns[order], until, "right") - 1
    last = order[np.maximum(place, 0)]
    ended = every.end_ns[last]
    return np.where((place >= 0) & (ended > since) & (until - ended <= HANDOVER_NS), last, -1)


def _was_ordered(mine: Commands, pauses: Pauses) -> Any:
    """Whether a stream was made to wait between the calls before and behind each pause, or one call sent both."""
    orders = mine.calls.start_ns[mine.calls.orders]  # by start, like all calls
    before, behind = mine.sent_ns[pauses.before], mine.sent_ns[pauses.behind]
    found = np.searchsorted(orders, behind) > np.searchsorted(orders, before)
    return found | (mine.call[pauses.before] == mine.call[pauses.behind])
