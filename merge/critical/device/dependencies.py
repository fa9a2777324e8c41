"""Dependencies: what each command of a rank's devices waited for last, and what calls of its host waited for.

A command begins some time after the last of three: the end of the command before it in its stream, the end of what its
stream was made to wait for, and its launch. Which of them came last is decided with the times that these handovers
take in the same timeline where only one of them is possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.arrays import Array, Flags, Integers
from distprof.merge.activity.device.commands import COPY, Commands
from distprof.merge.activity.device.rank_device import last_ended
from distprof.merge.activity.device.steps import HANDOVER_NS, LATENCY_NS
from distprof.merge.activity.markers import AUTOGRAD
from distprof.merge.match.backend_names import RUNTIME_CATEGORIES

LAUNCH, STREAM, EVENT, NOTHING = range(4)
"""What a command waited for last: its launch, the command before it in its stream, one of another stream, or nothing
that is known."""
APART_NS = 20_000
"""If two possible reasons are this far apart, the command waited for the later one."""
USUAL_NS = {LAUNCH: 4_000, STREAM: 1_500, EVENT: 5_000}
"""Time from each of them to the start of the command, if the timeline does not show it."""
LONG, DEEP, SOME = 8, 16, 3
"""A launch is long if it takes this many times as long as usual. A queue can be full only with at least this many
commands, and if at least this many long launches show it."""
LOOKED_BACK = 1_000
"""Earlier launches among which one of another stream is searched for."""
WAITS_FOR_ALL = "Device"
"""Occurs in the names of calls that wait for all streams."""
ASYNCHRONOUS = ("DtoD", "Device -> Device", "Pinned", "PtoP", "Memset")
"""Occur in the names of copies and fills for which no host waits, although their calls may return after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWaits:
    """Calls that return when a command has ended, sorted by thread, return and end of the command; calls that wait for
    all streams have a row for each stream."""

    thread: Integers
    began_ns: Integers
    ended_ns: Integers
    command: Integers
    over_ns: Integers
    """End of the last command that the same call waited for."""

    @property
    def blocked(self) -> Flags:
        """Whether each call had to wait: `over_ns` is later than its start."""
        return np.asarray(self.over_ns > self.began_ns, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies of a rank; arrays have one value per command."""

    previous: Integers
    """The command of the same stream that ended last before it began; -1: none."""
    awaited: Integers
    """The command of another stream for which its stream waited; -1: none."""
    ordered: Integers
    """As `awaited`, or the command for which its stream was probably made to wait, although it had ended before."""
    issued_ns: Integers
    """When its launch left the host; 0 if no launch is known."""
    bound: Integers
    """LAUNCH, STREAM, EVENT or NOTHING."""
    usual_ns: dict[int, int]
    """By LAUNCH, STREAM and EVENT: usual time from there to the start of the command."""
    waits: HostWaits

    def ahead(self, command: int) -> int:
        """Returns the command for which a command waited last; -1 if that is its launch, or unknown."""
        bound = self.bound[command]
        return int(self.previous[command] if bound == STREAM else self.awaited[command] if bound == EVENT else -1)


def as_one_thread(events: pl.DataFrame) -> pl.DataFrame:
    """Moves the slices of autograd's threads to the main thread, which calls backward and waits for it."""
    on_host = pl.col("category").str.to_lowercase().is_in(("cpu_op", "user_annotation", *RUNTIME_CATEGORIES))
    of_autograd = events.filter(pl.col("name").str.starts_with(AUTOGRAD))["thread"].unique().to_list()
    if not of_autograd:
        return events
    counts = events.filter(on_host, pl.col("thread").is_not_null()).group_by("thread").agg(
        marks=(pl.col("category") == "user_annotation").sum(), number=pl.len()).with_columns(
        others=~pl.col("thread").is_in(of_autograd)).sort("others", "marks", "number", "thread", descending=True)
    main = counts["thread"][0]
    return events.with_columns(thread=pl.when(on_host & pl.col("thread").is_in(of_autograd)).then(pl.lit(main))
                               .otherwise("thread"))


def dependencies(commands: Commands) -> Dependencies:
    """Finds the dependencies of a rank's commands.

    Args:
        commands: Commands from the slices that `as_one_thread` returned.
    """
    starts, asked, sent, known = commands.start_ns, commands.asked_ns, commands.sent_ns, commands.call >= 0
    previous = _previous(commands)
    before = np.where(previous >= 0, commands.end_ns[previous], 0)
    blocks = _blocks(commands)
    issued = np.where(blocks, sent + USUAL_NS[LAUNCH], np.minimum(asked, starts))  # a call that blocks returns later
    since = np.maximum(before, np.where(known, issued, 0))
    ordered = known & _was_ordered(commands, previous)
    last = last_ended(commands, since, starts)
    # without a call that orders streams, only a command that ended just before one that nothing else delayed
    near = known & (last >= 0) & (starts - since > LATENCY_NS) & (starts - commands.end_ns[last] <= LATENCY_NS)
    awaited = np.where(ordered | near, last, -1)
    behind = np.where(awaited >= 0, commands.end_ns[awaited], 0)
    usual = _usual(starts, asked, sent, before, behind)
    ready = np.stack([np.where(known, np.where(blocks, issued, asked + usual[LAUNCH]), -1),
                      np.where(previous >= 0, before + usual[STREAM], -1),
                      np.where(awaited >= 0, behind + usual[EVENT], -1)])
    bound = np.where(ready.max(axis=0) < 0, NOTHING, ready.argmax(axis=0))
    # a copy that begins late within its own call was prepared by the host meanwhile
    prepared = blocks & (bound != LAUNCH) & (starts - np.maximum(before, behind) > LATENCY_NS)
    bound = np.where(prepared, LAUNCH, bound)
    issued = np.where(~known, 0, np.where(bound == LAUNCH, np.minimum(asked, starts), np.minimum(issued, starts)))
    return Dependencies(previous=previous, awaited=awaited, issued_ns=issued, bound=bound, usual_ns=usual,
                        ordered=_ordered(commands, np.flatnonzero(ordered & (awaited < 0)), awaited),
                        waits=_host_waits(commands, blocks, issued))


def _previous(commands: Commands) -> Integers:
    """Returns the command of the same stream that ended last before each command; -1 for none."""
    found = np.full(len(commands.start_ns), -1, np.int64)
    for stream in np.unique(commands.stream).tolist():
        mine = np.flatnonzero(commands.stream == stream)  # by start
        ends = commands.end_ns[mine]
        order = np.argsort(ends, kind="stable")
        last = order[np.maximum(np.searchsorted(ends[order], commands.start_ns[mine], "right") - 1, 0)]
        place = np.arange(len(mine))
        last = np.where(last < place, last, place - 1)  # a command without duration ends where it begins
        good = (place > 0) & (last >= 0) & (ends[last] <= commands.start_ns[mine])
        found[mine[good]] = mine[last[good]]
    return found


def _was_ordered(commands: Commands, previous: Integers) -> Flags:
    """Returns whether any stream was made to wait between the launches of each command and the one before it in its
    stream, or one call launched both. For the first command of a stream, the launch before it in any stream counts."""
    sent, orders = commands.sent_ns, commands.calls.start_ns[commands.calls.orders]
    launches = np.sort(sent)
    latest = np.append(0, launches)[np.searchsorted(launches, sent)]
    before = np.where(previous >= 0, sent[previous], latest)
    found = np.searchsorted(orders, sent) > np.searchsorted(orders, before)
    return np.asarray(found | ((previous >= 0) & (commands.call[previous] == commands.call)), bool)


def _ordered(commands: Commands, rows: Integers, awaited: Integers) -> Integers:
    """Returns `awaited`, with, for these rows, the last command that another stream had been sent when a stream was
    made to wait."""
    sent, orders = commands.sent_ns, commands.calls.start_ns[commands.calls.orders]
    found, by_launch = awaited.copy(), np.argsort(sent, kind="stable")
    if not len(orders):  # only commands of one call, whose order is that of their streams
        return found
    at = orders[np.searchsorted(orders, sent[rows]) - 1]
    for row, place in zip(rows.tolist(), np.searchsorted(sent[by_launch], at).tolist(), strict=True):
        near = by_launch[max(place - LOOKED_BACK, 0):place]
        others = near[(commands.stream[near] != commands.stream[row]) & (sent[near] > 0)]
        if len(others) and commands.end_ns[others[-1]] <= commands.start_ns[row]:
            found[row] = others[-1]
    return found


def _blocks(commands: Commands) -> Flags:
    """Returns which copies blocked their calls: they ended before these returned, and no name says otherwise."""
    is_async = np.array([any(one in name for one in ASYNCHRONOUS) for name in commands.names] + [False], bool)
    found = (commands.kind == COPY) & (commands.call >= 0) & (commands.end_ns <= commands.asked_ns)
    return np.asarray(found & ~is_async[commands.name], bool)


def _usual(starts: Integers, asked: Integers, sent: Integers, before: Integers, behind: Integers) -> dict[int, int]:
    """Returns the median time from each kind of reason to the start, over commands for which only it is possible."""
    ended = np.maximum(before, behind)
    alone = {LAUNCH: (starts - asked, (sent > 0) & (ended + APART_NS < sent), LATENCY_NS),
             STREAM: (starts - before, (before > 0) & (np.maximum(asked, behind) + APART_NS < before), LATENCY_NS),
             EVENT: (starts - behind, (behind > 0) & (np.maximum(asked, before) + APART_NS < behind), HANDOVER_NS)}
    return {kind: int(np.median(took[held & (took <= most)])) if (held & (took <= most)).any() else USUAL_NS[kind]
            for kind, (took, held, most) in alone.items()}


def _host_waits(commands: Commands, blocks: Flags, issued: Integers) -> HostWaits:
    """Returns the calls, in threads that launch commands, that returned because a command had ended."""
    calls = commands.calls
    sending = np.unique(calls.thread[commands.call[commands.call >= 0]])
    rows = np.flatnonzero(calls.synchronises & np.isin(calls.thread, sending))
    full = _on_full_queue(commands)
    copies = np.flatnonzero(blocks & ~np.append(calls.synchronises, False)[commands.call])
    call = np.concatenate((rows, full, commands.call[copies]))
    command = np.concatenate((_ended_for(commands, rows),
                              _ended_within(commands, calls.start_ns[full], calls.end_ns[full]), copies))
    of_all = np.array([WAITS_FOR_ALL in name for name in calls.names] + [False], bool)[calls.name[rows]]
    for last in _last_of_streams(commands, calls.start_ns[rows[of_all]]):
        call, command = np.concatenate((call, rows[of_all])), np.concatenate((command, last))
    began, ended = calls.start_ns[call], calls.end_ns[call]
    first = len(rows) + len(full)
    began[first:first + len(copies)] = issued[copies]  # until then, the call only launches the copy
    over = np.append(commands.end_ns, 0)[command]
    held = np.flatnonzero((command >= 0) & (over <= ended))
    last = np.zeros(len(calls.start_ns), np.int64)
    np.maximum.at(last, call[held], over[held])
    order = held[np.lexsort((over[held], ended[held], calls.thread[call[held]]))]
    return HostWaits(thread=calls.thread[call[order]], began_ns=began[order], ended_ns=ended[order],
                     command=command[order], over_ns=last[call[order]])


def _on_full_queue(commands: Commands) -> Integers:
    """Returns launches that took long because the queue was full: devices queue at most some thousand commands.

    The limit is unknown. It is the smallest queue length from which on launches spend most of their time in long ones.
    """
    calls, known = commands.calls, commands.call >= 0
    row = np.unique(commands.call[known])
    row = row[calls.sends_kernel[row]]
    if not len(row):
        return row
    queued = np.searchsorted(np.sort(commands.sent_ns[known]), calls.start_ns[row]) - np.searchsorted(
        np.sort(commands.start_ns[known]), calls.start_ns[row], "right")
    took = calls.end_ns[row] - calls.start_ns[row]
    is_long = took > LONG * np.median(took)
    order = np.argsort(-queued, kind="stable")
    longs, spent = (np.cumsum(values[order]) for values in (is_long, np.where(is_long, took, 0)))
    holds = (queued[order] >= DEEP) & (longs >= SOME) & (2 * spent > np.cumsum(took[order]))
    if not holds.any():
        return row[:0]
    least = queued[order][np.flatnonzero(holds)[-1]]
    return np.asarray(row[is_long & (queued >= least)], np.int64)


def _ended_within(commands: Commands, since: Integers, until: Integers) -> Integers:
    """Returns the command that ended last in each of these intervals; -1 for none."""
    order = np.argsort(commands.end_ns, kind="stable")
    last = np.append(order, -1)[np.searchsorted(commands.end_ns[order], until, "right") - 1]
    return np.where((last >= 0) & (commands.end_ns[last] > since), last, -1)


def _ended_for(commands: Commands, rows: Integers) -> Integers:
    """Returns the command that each of these calls waited for; -1 for none.

    A stream is empty when the last command that was sent to it has ended. Which stream a call waits for is unknown, and
    taken to be the one whose last command ended last before the call returned. An event may be before any command.
    """
    calls, sent = commands.calls, commands.sent_ns
    began, ended = calls.start_ns[rows], calls.end_ns[rows]
    found, over = np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.int64)
    for last in _last_of_streams(commands, began):
        at = np.where(last >= 0, commands.end_ns[last], -1)
        better = (at <= ended) & (at > over)
        found, over = np.where(better, last, found), np.where(better, at, over)
    of_event = np.array(["Event" in name for name in calls.names] + [False], bool)[calls.name[rows]]
    latest = last_ended(commands, began, ended)
    was_sent = (latest >= 0) & (sent[latest] < began) & (sent[latest] > 0)
    return np.where(of_event, np.where(was_sent, latest, -1), found)


def _last_of_streams(commands: Commands, times: Array) -> Iterator[Integers]:
    """Yields for each stream the last command that was launched up to each of these times; -1 for none."""
    sent = commands.sent_ns
    for stream in np.unique(commands.stream).tolist():
        mine = np.flatnonzero((commands.stream == stream) & (commands.call >= 0))
        order = mine[np.lexsort((commands.start_ns[mine], sent[mine]))]
        yield np.append(order, -1)[np.searchsorted(sent[order], times, "right") - 1]
