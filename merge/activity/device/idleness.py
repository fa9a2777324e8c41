"""When a device or a stream had nothing to run, and why.

The command that ends a pause tells why there was one. Until its call had returned, nobody had asked for it: the host
was late, or waited for the device itself. From then on it waited for something that another stream ran, or needed the
short time that any command needs. A longer wait for which the timeline shows no reason is called unshown: commands that
the profiler did not note, other processes on the device, or functions of the host may be the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.arrays import Flags, Integers
from distprof.merge.activity.device.commands import COPY, Commands
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
