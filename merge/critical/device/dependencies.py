"""What each command of a rank's devices waited for last, and what calls of its host waited for.

A command begins when the command in front of it in its stream is over, what its stream was made to wait for is over,
and its launch has reached the device: each of them some time later. Which of the three came last is decided with the
times that these handovers take in the same timeline where only one of them is possible.
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
"""What a command waited for last: its launch, the command in front of it, one of another stream, nothing that is
known."""
APART_NS = 20_000
"""So far apart, the later one of two was waited for."""
USUAL_NS = {LAUNCH: 4_000, STREAM: 1_500, EVENT: 5_000}
"""How long commands take to begin behind each of them, where the timeline does not show it."""
LONG, DEEP, SOME = 8, 16, 3
"""A call that takes so many times as long as usual is long. A queue is full with so many commands at least, where at
least so many long calls show it."""
LOOKED_BACK = 1_000
"""Launches among which one of another stream is looked for."""
WAITS_FOR_ALL = "Device"
"""Part of the names of calls that wait for all streams."""
ASYNCHRONOUS = ("DtoD", "Device -> Device", "Pinned", "PtoP", "Memset")
"""Parts of names of copies and fills for which no host waits, though their calls may return behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWaits:
    """Calls that return when a command is over, by thread and return, then by end of the command; of calls that wait
    for all streams, a row for each of them."""

    thread: Integers
    began_ns: Integers
    ended_ns: Integers
    command: Integers
    over_ns: Integers
    """When the last command was over that the same call waited for."""

    @property
    def blocked(self) -> Flags:
        """Whether that was later than the call began."""
        return np.asarray(self.over_ns > self.began_ns, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Each array but the last ones has a value a command."""

    previous: Integers
    """The command of its stream that was over last when it began; -1: none."""
    awaited: Integers
    """The command of another stream that its stream waited for; -1: none."""
    ordered: Integers
    """The same, or the command that its stream was probably made to wait for, which was over before that mattered."""
    issued_ns: Integers
    """When its launch had left the host; 0 where no launch is known."""
    bound: Integers
    """LAUNCH, STREAM, EVENT or NOTHING."""
    usual_ns: dict[int, int]
    """How long commands usually take to begin behind each of them."""
    waits: HostWaits

    def ahead(self, command: int) -> int:
        """The command for which one waited; -1 where that is its launch, or not known."""
        bound = self.bound[command]
        return int(self.previous[command] if bound == STREAM else self.awaited[command] if bound == EVENT else -1)


def as_one_thread(events: pl.DataFrame) -> pl.DataFrame:
    """Slices of a rank, with those of autograd's threads in the thread that calls backward and waits for it."""
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
    """Finds them.

    Args:
        commands: Of a rank, whose calls are of `as_one_thread`.
    """
    starts, asked, sent, known = commands.start_ns, commands.asked_ns, commands.sent_ns, commands.call >= 0
    previous = _previous(commands)
    before = np.where(previous >= 0, commands.end_ns[previous], 0)
    blocks = _blocks(commands)
    issued = np.where(blocks, sent + USUAL_NS[LAUNCH], np.minimum(asked, starts))  # a call that blocks returns later
    since = np.maximum(before, np.where(known, issued, 0))
    ordered = known & _was_ordered(commands, previous)
    last = last_ended(commands, since, starts)
    # without a call that orders streams, only what ended just before a command that nothing else held up
    near = known & (last >= 0) & (starts - since > LATENCY_NS) & (starts - commands.end_ns[last] <= LATENCY_NS)
    awaited = np.where(ordered | near, last, -1)
    behind = np.where(awaited >= 0, commands.end_ns[awaited], 0)
    usual = _usual(starts, asked, sent, before, behind)
    ready = np.stack([np.where(known, np.where(blocks, issued, asked + usual[LAUNCH]), -1),
                      np.where(previous >= 0, before + usual[STREAM], -1),
                      np.where(awaited >= 0, behind + usual[EVENT], -1)])
    bound = np.where(ready.max(axis=0) < 0, NOTHING, ready.argmax(axis=0))
    # what takes long before it begins within its call is prepared by the host
    prepared = blocks & (bound != LAUNCH) & (starts - np.maximum(before, behind) > LATENCY_NS)
    bound = np.where(prepared, LAUNCH, bound)
    issued = np.where(~known, 0, np.where(bound == LAUNCH, np.minimum(asked, starts), np.minimum(issued, starts)))
    return Dependencies(previous=previous, awaited=awaited, issued_ns=issued, bound=bound, usual_ns=usual,
                        ordered=_ordered(commands, np.flatnonzero(ordered & (awaited < 0)), awaited),
                        waits=_host_waits(commands, blocks, issued))


def _previous(commands: Commands) -> Integers:
    """The command of the same stream that ended last before each one."""
    found = np.full(len(commands.start_ns), -1, np.int64)
    for stream in np.unique(commands.stream).tolist():
        mine = np.flatnonzero(commands.stream == stream)  # by start
        ends = commands.end_ns[mine]
        order = np.argsort(ends, kind="stable")
        last = order[np.maximum(np.searchsorted(ends[order], commands.start_ns[mine], "right") - 1, 0)]
        place = np.arange(len(mine))
        last = np.where(last < place, last, place - 1)  # one without length ends where it begins
        good = (place > 0) & (last >= 0) & (ends[last] <= commands.start_ns[mine])
        found[mine[good]] = mine[last[good]]
    return found


def _was_ordered(commands: Commands, previous: Integers) -> Flags:
    """Whether streams were made to wait between the launches of each command and the one in front of it, or one call
    sent both; of the first command of a stream, since anything was launched."""
    sent, orders = commands.sent_ns, commands.calls.start_ns[commands.calls.orders]
    launches = np.sort(sent)
    latest = np.append(0, launches)[np.searchsorted(launches, sent)]
    before = np.where(previous >= 0, sent[previous], latest)
    found = np.searchsorted(orders, sent) > np.searchsorted(orders, before)
    return np.asarray(found | ((previous >= 0) & (commands.call[previous] == commands.call)), bool)


def _ordered(commands: Commands, rows: Integers, awaited: Integers) -> Integers:
    """`awaited`, with the last command that another stream had been sent when some streams were made to wait."""
    sent, orders = commands.sent_ns, commands.calls.start_ns[commands.calls.orders]
    found, by_launch = awaited.copy(), np.argsort(sent, kind="stable")
    if not len(orders):  # of commands of one call the order is that of their streams
        return found
    at = orders[np.searchsorted(orders, sent[rows]) - 1]
    for row, place in zip(rows.tolist(), np.searchsorted(sent[by_launch], at).tolist(), strict=True):
        near = by_launch[max(place - LOOKED_BACK, 0):place]
        others = near[(commands.stream[near] != commands.stream[row]) & (sent[near] > 0)]
        if len(others) and commands.end_ns[others[-1]] <= commands.start_ns[row]:
            found[row] = others[-1]
    return found


def _blocks(commands: Commands) -> Flags:
    """Copies that their calls waited for: they had ended when these returned, and their names do not say otherwise."""
    is_async = np.array([any(one in name for one in ASYNCHRONOUS) for name in commands.names] + [False], bool)
    found = (commands.kind == COPY) & (commands.call >= 0) & (commands.end_ns <= commands.asked_ns)
    return np.asarray(found & ~is_async[commands.name], bool)


def _usual(starts: Integers, asked: Integers, sent: Integers, before: Integers, behind: Integers) -> dict[int, int]:
    """How long commands take to begin behind each thing that they may wait for, of those that waited for it alone."""
    ended = np.maximum(before, behind)
    alone = {LAUNCH: (starts - asked, (sent > 0) & (ended + APART_NS < sent), LATENCY_NS),
             STREAM: (starts - before, (before > 0) & (np.maximum(asked, behind) + APART_NS < before), LATENCY_NS),
             EVENT: (starts - behind, (behind > 0) & (np.maximum(asked, before) + APART_NS < behind), HANDOVER_NS)}
    return {kind: int(np.median(took[held & (took <= most)])) if (held & (took <= most)).any() else USUAL_NS[kind]
            for kind, (took, held, most) in alone.items()}


def _host_waits(commands: Commands, blocks: Flags, issued: Integers) -> HostWaits:
    """Calls of threads that send commands which returned because a command was over."""
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
    began[first:first + len(copies)] = issued[copies]  # until then it only asks for the copy
    over = np.append(commands.end_ns, 0)[command]
    held = np.flatnonzero((command >= 0) & (over <= ended))
    last = np.zeros(len(calls.start_ns), np.int64)
    np.maximum.at(last, call[held], over[held])
    order = held[np.lexsort((over[held], ended[held], calls.thread[call[held]]))]
    return HostWaits(thread=calls.thread[call[order]], began_ns=began[order], ended_ns=ended[order],
                     command=command[order], over_ns=last[call[order]])


def _on_full_queue(commands: Commands) -> Integers:
    """Calls that took long because the queue was full: devices take some thousand commands at most.

    How many is not known. Where calls that find at least so many spend most of their time in some that take far longer
    than usual, that is why.
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
    """The command that ended last in each of these times; -1 for none."""
    order = np.argsort(commands.end_ns, kind="stable")
    last = np.append(order, -1)[np.searchsorted(commands.end_ns[order], until, "right") - 1]
    return np.where((last >= 0) & (commands.end_ns[last] > since), last, -1)


def _ended_for(commands: Commands, rows: Integers) -> Integers:
    """The command that some calls waited for; -1 for none.

    A stream is empty when the last command is over that was sent to it. Which stream a call waits for is not known: the
    one whose last command ended last before the call returned. An event may lie in front of any command.
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
    """Of each stream, the last command that was sent until each of these times, with it; -1 for none."""
    sent = commands.sent_ns
    for stream in np.unique(commands.stream).tolist():
        mine = np.flatnonzero((commands.stream == stream) & (commands.call >= 0))
        order = mine[np.lexsort((commands.start_ns[mine], sent[mine]))]
        yield np.append(order, -1)[np.searchsorted(sent[order], times, "right") - 1]
