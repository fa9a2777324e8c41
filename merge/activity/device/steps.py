"""Steps of a device, from the first command of one step of the host to the first of the next; its idle time, and why.

A command belongs to the step in which the host launched it, whenever it runs.

The command that ends a pause tells its cause. Until its launch had returned, the host was late, or waited for the
device itself. After that, the command waited for something in another stream, or needed the short time that any command
needs. A longer wait for which the timeline shows no reason is called unshown: the reason may be commands that the
profiler did not record, other processes on the device, or host functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.arrays import Flags, Integers
from distprof.merge.activity.device.commands import COMMUNICATION, COMPUTE, COPY, Commands
from distprof.merge.activity.intervals import NOTHING, Intervals

LATENCY_NS = 10_000
"""Launch latency: a launched command that nothing holds up begins within this time."""
HANDOVER_NS = 30_000
"""A command that waits for a command of another stream begins within this time after it."""
CAUSES = ("host", "sync", "stream", "latency", "unshown", "unsent", "unasked")
"""Why a device is idle. host: the next command had not been launched yet. sync: it could not be, because the host
waited for the device. stream: it continued after a command of another stream. latency: the time that any command needs.
unshown: it had been launched long before, and the timeline does not show what it waited for. unsent: its launch is not
in the timeline. unasked: there is no further command."""
PARTS = ("compute", "waiting", "moving", "copies", "idle")
"""Parts of a step of a device; they add up to it. `waiting` and `moving` are exposed communication: kernels that
communicate while nothing is computed, before and after the last rank had come. `copies`: copies and fills at other
times."""
BESIDE = ("overlapped", "communication", "after_sync", "in_graph")
"""Further times of a step, which overlap its parts."""
SCHEMA = {"rank": pl.Int64, "device": pl.String, "step": pl.Int64, "start_ns": pl.Int64, "device_step_ns": pl.Int64,
          "is_whole": pl.Boolean, "is_marked": pl.Boolean, "commands": pl.Int64,
          **{f"{part}_ns": pl.Int64 for part in PARTS}, **{f"{cause}_idle_ns": pl.Int64 for cause in CAUSES},
          **{f"{one}_ns": pl.Int64 for one in BESIDE}, "message_waiting_ns": pl.Int64}
"""Columns of steps. `device_step_ns`: time until the first command of the next step; if there is none, `is_whole` is
false, and the step ends with its last command, or with the step of the host if that is later. `is_marked` is false if
the whole trace counts as one step. `communication_ns`: when a kernel communicated; `overlapped_ns`: the part of it in
which something was computed. Of the idle time, `after_sync_ns` is the part of `host_idle_ns` after a synchronisation
that had emptied the queue, `in_graph_ns` the part of `unshown_idle_ns` that commands of graphs end."""
Span = tuple[int, int, int, bool]
"""A step of a device: number, start, end, and whether its end is the first command of the next step."""
OUTSIDE = {"rank": pl.Int64, "device": pl.String, "unsent": pl.Int64, "unsent_ns": pl.Int64, "outside": pl.Int64,
           "outside_ns": pl.Int64, "early": pl.Int64, "early_ns": pl.Int64, "lost": pl.Int64, "launches": pl.Int64}
"""Columns about commands that belong to no step. `unsent`: number of commands with unknown launch, `outside`: number of
those launched outside of all steps, and their times. `early`: number of those that begin before their launch, by at
most `early_ns`. In the row of a rank's first device (or without a device) also `launches`, and how many of them are
`lost`: the timeline lacks what they launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idleness:
    """Pauses by cause, without overlap."""

    causes: dict[str, Intervals]
    """Name in `CAUSES` -> when it applies."""
    after_sync: Intervals
    """The part of host after a synchronisation that had emptied the queue."""
    in_graph: Intervals
    """The part of unshown that commands of graphs end, because the profiler may not record all of these."""

    def within(self, starts: Integers, ends: Integers) -> dict[str, Integers]:
        """Returns by column how long each cause applies in each interval."""
        found = {f"{name}_idle_ns": times.within(starts, ends) for name, times in self.causes.items()}
        return {**found, "after_sync_ns": self.after_sync.within(starts, ends),
                "in_graph_ns": self.in_graph.within(starts, ends)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Pauses of a device; each array has one value per pause."""

    starts: Integers
    ends: Integers
    before: Integers
    """Index of the command that ended last before it."""
    behind: Integers
    """Index of the command that ends it; if there are several, of the one whose launch returned first."""


def idleness_of(commands: Commands, until_ns: int) -> Idleness:
    """Determines why a device was idle between its first command and a time.

    Args:
        commands: All commands of one device, at least one.
        until_ns: A time after its last command; the time in between is unasked.
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
    """Returns when a thread that launches commands waited for the device: in synchronisation calls, and in copies that
    had ended when their call returned."""
    calls = commands.calls
    if not len(calls.start_ns):
        return NOTHING
    sending = np.isin(calls.thread, np.unique(calls.thread[commands.call[commands.call >= 0]]))
    chosen = sending & calls.synchronises
    sent = np.flatnonzero((commands.call >= 0) & (commands.kind == COPY))
    blocking = sent[commands.end_ns[sent] <= commands.asked_ns[sent]]
    # until its copy begins, a blocking call only launches it
    starts = np.concatenate((calls.start_ns[chosen], commands.start_ns[blocking]))
    return Intervals.of(starts, np.concatenate((calls.end_ns[chosen], commands.asked_ns[blocking])))


def pauses_of(commands: Commands) -> Pauses:
    """Returns the pauses between commands, which are sorted by start."""
    reach = np.maximum.accumulate(commands.end_ns)
    # the index of the command with the latest end so far
    furthest = np.maximum.accumulate(np.where(commands.end_ns == reach, np.arange(len(reach)), -1))
    behind = np.flatnonzero(commands.start_ns[1:] > reach[:-1]) + 1
    return Pauses(starts=reach[behind - 1], ends=commands.start_ns[behind], before=furthest[behind - 1], behind=behind)


def asked_of(commands: Commands, pauses: Pauses) -> tuple[Integers, Flags]:
    """Returns when the launch of the command that ends each pause had returned, and whether that is known."""
    known = commands.call[pauses.behind] >= 0
    return np.where(known, commands.asked_ns[pauses.behind], pauses.starts), known


def step_of_commands(commands: Commands, windows: pl.DataFrame) -> Integers:
    """Returns the step in which each command was launched; -1 if it was launched in none.

    Args:
        commands: Commands of a rank.
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
    """Returns the steps of a device.

    Args:
        commands: Commands of one device.
        step: Their `step_of_commands`.
        windows: Steps of the host by start, with `is_marked`, false if the whole trace counts as one step.
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
    """Returns by column how long each part of each span takes.

    Args:
        commands: All commands of one device.
        idleness: When it was idle, and why.
        spans: See `spans_of`.
        waits: When the rank was in a collective and another rank was not.
        messages: The part of `waits` in sends and receives.
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
