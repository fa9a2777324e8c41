"""Steps of a device, from the first command of one step of the host to the first of the next; its idle time, and why.

A command belongs to the step in which the host sent it, whenever it runs.

The command that ends a pause tells why there was one. Until its call had returned, nobody had asked for it: the host
was late, or waited for the device itself. From then on it waited for something that another stream ran, or needed the
short time that any command needs. A longer wait for which the timeline shows no reason is called unshown: commands that
the profiler did not note, other processes on the device, or functions of the host may be the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.arrays import Flags, Integers
from distprof.merge.activity.device.commands import COMMUNICATION, COMPUTE, COPY, Commands
from distprof.merge.activity.intervals import NOTHING, Intervals

LATENCY_NS = 10_000
"""So long may a command that was asked for take to begin, though nothing holds it up."""
HANDOVER_NS = 30_000
"""So long may it take to begin behind a command of another stream that it waits for."""
CAUSES = ("host", "sync", "stream", "latency", "unshown", "unsent", "unasked")
"""Why a device is idle. host: the next command had not been asked for yet. sync: nor could it be, because the host
waited for the device. stream: it was handed over from another stream. latency: it needed the time that any command
needs. unshown: it had been asked for long ago, and the timeline does not show what it waited for. unsent: the timeline
does not show when it was asked for. unasked: there is no further command."""
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
           "outside_ns": pl.Int64, "early": pl.Int64, "early_ns": pl.Int64, "lost": pl.Int64, "launches": pl.Int64}
"""Commands that belong to no step, and how long they took: those whose call is not known, and those that were sent
outside of all steps. `early`: those that begin before the call that sends them, `early_ns` by how much at most. In the
row of the first device of a rank, or in one without a device: its launches of which the timeline has nothing, and all
of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idleness:
    """Pauses by cause; they do not overlap."""

    causes: dict[str, Intervals]
    """By name of `CAUSES`."""
    after_sync: Intervals
    """The part of host behind a synchronisation that had emptied the queue."""
    in_graph: Intervals
    """The part of unshown that commands of graphs end, of which the profiler may not note all."""

    def within(self, starts: Integers, ends: Integers) -> dict[str, Integers]:
        """How long each cause holds in each interval, by column."""
        found = {f"{name}_idle_ns": times.within(starts, ends) for name, times in self.causes.items()}
        return {**found, "after_sync_ns": self.after_sync.within(starts, ends),
                "in_graph_ns": self.in_graph.within(starts, ends)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Each array has a value a pause."""

    starts: Integers
    ends: Integers
    before: Integers
    """The command that ended last before it."""
    behind: Integers
    """The one that ends it; of several that had been asked for first."""


def idleness_of(commands: Commands, until_ns: int) -> Idleness:
    """Why a device was idle between its first command and a time.

    Args:
        commands: All of one device, at least one.
        until_ns: Behind its last command; what lies between is unasked.
    """
    pauses = pauses_of(commands)
    asked, known = asked_of(commands, pauses)
    late = np.where(known, np.clip(asked, pauses.starts, pauses.ends), pauses.starts)
    held_ns = pauses.ends - late
    synchronising = synchronisations(commands)
    host = Intervals.of(pauses.starts[known], late[known])
    sync = host & synchronising
    handed = (commands.stream[pauses.before] != commands.stream[pauses.behind]) & (asked <= pauses.starts)
    kinds = np.select([~known, held_ns <= LATENCY_NS, handed & (held_ns <= HANDOVER_NS)],
                      ["unsent", "latency", "stream"], "unshown")
    held = {name: Intervals.of(late[kinds == name], pauses.ends[kinds == name])
            for name in ("stream", "latency", "unshown", "unsent")}
    end = int(commands.end_ns.max())
    of_graph = (kinds == "unshown") & np.append(commands.calls.sends_graph, False)[commands.call[pauses.behind]]
    emptied = known & synchronising.covers(pauses.starts - 1)
    return Idleness(
        causes={"host": host - sync, "sync": sync, **held,
                "unasked": Intervals.of([end], [max(end, until_ns)])},
        after_sync=Intervals.of(pauses.starts[emptied], late[emptied]) - sync,
        in_graph=Intervals.of(late[of_graph], pauses.ends[of_graph]))


def synchronisations(commands: Commands) -> Intervals:
    """When a thread that sends commands waited for the device: in calls that do only that, and in copies that had ended
    when their call returned."""
    calls = commands.calls
    if not len(calls.start_ns):
        return NOTHING
    sending = np.isin(calls.thread, np.unique(calls.thread[commands.call[commands.call >= 0]]))
    chosen = sending & calls.synchronises
    sent = np.flatnonzero((commands.call >= 0) & (commands.kind == COPY))
    blocking = sent[commands.end_ns[sent] <= commands.asked_ns[sent]]
    # until a copy begins, the call that blocks is only asking for it
    starts = np.concatenate((calls.start_ns[chosen], commands.start_ns[blocking]))
    return Intervals.of(starts, np.concatenate((calls.end_ns[chosen], commands.asked_ns[blocking])))


def pauses_of(commands: Commands) -> Pauses:
    """Between commands, which are by start."""
    reach = np.maximum.accumulate(commands.end_ns)
    # the place of the command that reaches furthest so far
    furthest = np.maximum.accumulate(np.where(commands.end_ns == reach, np.arange(len(reach)), -1))
    behind = np.flatnonzero(commands.start_ns[1:] > reach[:-1]) + 1
    return Pauses(starts=reach[behind - 1], ends=commands.start_ns[behind], before=furthest[behind - 1], behind=behind)


def asked_of(commands: Commands, pauses: Pauses) -> tuple[Integers, Flags]:
    """When what ends each pause had been asked for, and whether that is known."""
    known = commands.call[pauses.behind] >= 0
    return np.where(known, commands.asked_ns[pauses.behind], pauses.starts), known


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
