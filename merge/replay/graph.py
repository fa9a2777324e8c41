"""The graph of a job: what each thread does in order, and the collectives in which threads meet."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from distprof.arrays import Array, Flags, Integers

CALL, WAIT, MARK, NOTHING = 0, 1, 2, 3
"""Kinds of events. CALL: the thread hands an op to the backend; WAIT: it is blocked until an op has ended; MARK: an
instant whose time a replay returns; NOTHING: any other instant."""
BLOCKED_NS = 100_000
"""A shorter wait, in ns, may have been for an op that had already ended."""
OVERLAPS = 0.05
"""A queue has two lanes if more than this fraction of ops begin long before the one in front of them has ended. The
fraction is small because, with two lanes, only the second of the buckets of a step that wait for a late rank may do
so."""
ENOUGH = 8
"""A queue is judged on its own if it has at least this many ops that were called before the one in front of them
moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """What threads do: the events of each rank are contiguous and in order of time. Times in int64 ns on one clock."""

    rank: Integers
    """Index of the rank, from 0."""
    kind: Integers
    part: Integers
    """Index of the part, for calls and waits; else -1."""
    began_ns: Integers
    """When a wait began; equal to `at_ns` for events without duration."""
    at_ns: Integers
    """When the thread went on."""

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts: what one rank does in one op. Times in int64 ns on one clock."""

    queue: Integers
    """Queue of a rank and a group, whose parts begin in the order of their calls. -1: the part begins at once."""
    join: Integers
    """Parts of one join end after the last of them, and of the parts that lead the join, has begun."""
    root: Integers
    """The only other part of the join that has to have begun, for a part that needs just one. -1: it needs all."""
    start_ns: Integers
    """When the backend began with it."""
    end_ns: Integers
    op: Integers
    """Number of the op: parts with the same number transfer for about as long, on all ranks and in all joins."""
    noted_late: Flags
    """True if the op may have ended some time before `end_ns`."""

    def __len__(self) -> int:
        return len(self.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A job with known durations; a replay without changes gives the measured times.

    A part begins `latency_ns` after it was called and a lane of its queue is free. It ends `transfer_ns` after the last
    part that its join needs has begun. A thread that waits for it goes on `wake_ns` later, or at once if it comes later
    than that.
    """

    events: Events
    parts: Parts
    leads: Integers
    """Pairs (join, part): the join needs the part to have begun. Shape (pairs, 2), sorted by join."""
    own_ns: Array
    """Work of the thread before each event."""
    wake_ns: Integers
    """Delay between the end of the part and the thread going on, for events that are waits."""
    latency_ns: Integers
    transfer_ns: Array
    uses_lane: Flags
    """False for a part that began although no lane seemed to be free."""
    previous: Integers
    """The part before each part in its queue; -1 if none."""
    single_lane: Flags
    """True for queues with a single lane."""


def linked(events: Events, parts: Parts, leads: Integers) -> Graph:
    """Builds the graph of what was measured: durations are the differences of measured times."""
    begun = _all_begun(parts, leads)
    calls = np.flatnonzero(events.kind == CALL)
    called = np.zeros(len(parts), np.int64)
    called[events.part[calls]] = events.at_ns[calls]
    parts, order, previous, single = _queues(parts, called, events.part[calls], begun)
    ends = _ends(events, _bounded_by_next(parts, previous, single), begun)
    own, wake = _own_and_wake(events, ends)
    parts = replace(parts, end_ns=ends)
    free = _free_lanes(parts, order, single)
    # an end that was recorded late may be after the start that it allowed
    uses = (parts.queue >= 0) & (np.abs(parts.start_ns - np.maximum(called, free)) <= parts.start_ns - called)
    latency = parts.start_ns - np.where(uses, np.maximum(called, free), called)
    return Graph(events=events, parts=parts, leads=leads, own_ns=own, wake_ns=wake, latency_ns=latency,
                 transfer_ns=ends - begun, uses_lane=uses, previous=previous, single_lane=single)


def without(graph: Graph, joins: Integers) -> Graph:
    """Returns the graph without some joins; what waited for them takes as long as measured."""
    events, parts = graph.events, graph.parts
    gone = (events.part >= 0) & np.isin(parts.join[events.part], joins)
    before = np.concatenate((events.at_ns[:1], events.at_ns[:-1]))
    own = np.where(gone & (events.kind == WAIT), events.at_ns - before, graph.own_ns)
    kept = ~np.isin(parts.join, joins)
    previous = graph.previous.copy()
    while (hidden := (previous >= 0) & ~kept[previous]).any():
        previous[hidden] = previous[previous[hidden]]
    return replace(graph, events=replace(events, kind=np.where(gone, NOTHING, events.kind),
                                         part=np.where(gone, -1, events.part)), own_ns=own, previous=previous,
                   leads=graph.leads[kept[graph.leads[:, 1]] & ~np.isin(graph.leads[:, 0], joins)])


def _queues(parts: Parts, called: Integers, calls: Integers,
            begun: Integers) -> tuple[Parts, Integers, Integers, Flags]:
    """Returns parts (queue -1 for what is none), their order by queue and call, the part before each, single lanes.

    A queue has one lane unless ops begin before the one in front of them has ended; two lanes unless they begin before
    either of two in front of them has; otherwise it is not a queue.
    """
    order, previous = _in_queues(parts, calls)
    # an op whose end may have been recorded late had not ended as long as a rank had not begun
    ends, begins = (_two_latest(parts, order, times) for times in (np.where(parts.noted_late, begun, parts.end_ns),
                                                                   begun))
    single, two = (_waits_for(parts, end, called, called < begin) for end, begin in zip(ends, begins, strict=True))
    is_none = ~single & ~two
    if is_none.any():
        parts = replace(parts, queue=np.where(is_none[parts.queue] & (parts.queue >= 0), -1, parts.queue))
        order, previous = _in_queues(parts, calls)
    return parts, order, previous, single


def _waits_for(parts: Parts, end: Integers, called: Integers, had_to: Flags) -> Flags:
    """Marks queues whose parts begin no earlier than an end before them. A queue with few tries is judged by others.

    Args:
        parts: All parts.
        end: When each part could begin; clocks may be slightly wrong.
        called: When each part was called.
        had_to: True for parts that were called so early that they had to wait for `end`.
    """
    behind = np.flatnonzero(had_to & (parts.queue >= 0))
    queue = parts.queue[behind]
    num_queues = int(parts.queue.max(initial=-1)) + 1
    tries = np.bincount(queue, minlength=num_queues)
    is_early = 2 * parts.start_ns[behind] < end[behind] + called[behind]
    early = np.bincount(queue, is_early, num_queues)
    few = tries < ENOUGH
    tries[few], early[few] = max(int(tries.sum()), 1), early.sum()
    return early <= OVERLAPS * tries


def _bounded_by_next(parts: Parts, previous: Integers, single: Flags) -> Parts:
    """Limits ends to the start of the next op, in queues with one lane."""
    behind = np.flatnonzero((previous >= 0) & (parts.queue >= 0))
    behind = behind[single[parts.queue[behind]] & parts.noted_late[previous[behind]]]
    ends = parts.end_ns.copy()
    ends[previous[behind]] = np.minimum(ends[previous[behind]], parts.start_ns[behind])
    return replace(parts, end_ns=ends)


def _ends(events: Events, parts: Parts, begun: Integers) -> Integers:
    """Returns the ends of parts. If an end was recorded late, a thread that waited for the part and went on tells it.

    If no thread had to wait for a part, it is only known to have ended by then. It is assumed to have taken as long as
    on the rank with the fastest part of this op.
    """
    waits = np.flatnonzero(events.kind == WAIT)
    part, began, at = events.part[waits], events.began_ns[waits], events.at_ns[waits]
    ends, unsure = parts.end_ns.copy(), parts.noted_late.copy()
    late, blocked = ends[part] > at, at - began >= BLOCKED_NS
    unsure[part] = (unsure[part] | late) & ~blocked
    ends[part[late]] = np.where(blocked, at, began)[late]
    fastest = np.full(int(parts.op.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(fastest, parts.op, ends - begun)
    ends[unsure] = np.minimum(ends, begun + np.maximum(fastest[parts.op], 0))[unsure]
    return ends


def _own_and_wake(events: Events, ends: Integers) -> tuple[Integers, Integers]:
    """Returns the work before events, and the wake-up latency of waits."""
    waits = np.flatnonzero(events.kind == WAIT)
    before = np.concatenate((events.at_ns[:1], events.at_ns[:-1]))
    first = np.concatenate(([True], events.rank[1:] != events.rank[:-1])) if len(events) else np.zeros(0, bool)
    before = np.where(first, events.at_ns, before)
    own = np.where(first, 0, np.maximum(events.began_ns - before, 0))
    wake = np.zeros(len(events), np.int64)
    end = ends[events.part[waits]]
    is_blocked = end > before[waits] + own[waits]
    wake[waits] = np.where(is_blocked, events.at_ns[waits] - end, 0)
    # even a wait for what has ended takes some time
    own[waits] = np.where(is_blocked | first[waits], own[waits], events.at_ns[waits] - before[waits])
    return own, wake


def _in_queues(parts: Parts, called: Integers) -> tuple[Integers, Integers]:
    """Returns the parts by queue in the order of their calls, and the part before each."""
    place = np.full(len(parts), len(called), np.int64)
    place[called] = np.arange(len(called))
    order = np.lexsort((place, parts.queue))
    order = order[parts.queue[order] >= 0]
    previous = np.full(len(parts), -1, np.int64)
    follows = parts.queue[order[1:]] == parts.queue[order[:-1]]
    previous[order[1:][follows]] = order[:-1][follows]
    return order, previous


def _free_lanes(parts: Parts, order: Integers, single: Flags) -> Integers:
    """Returns from when on each part could have had a lane: with two lanes, from the second-latest end before it."""
    latest, free = _two_latest(parts, order, parts.end_ns)
    alone = order[single[parts.queue[order]]]
    free[alone] = latest[alone]
    return free


def _two_latest(parts: Parts, order: Integers, times: Integers) -> tuple[Integers, Integers]:
    """Returns the latest and the second-latest time of all parts before each part in its queue; 0 if there is none."""
    found = np.zeros((2, len(parts)), np.int64)
    if len(order):
        queue = parts.queue[order]
        first = np.concatenate(([True], queue[1:] != queue[:-1]))
        low = int(times.min()) - 1
        base = queue * (int(times.max()) - low + 1)  # keeps a running maximum within its queue
        ends = times[order] - low + base
        latest = np.maximum.accumulate(ends)
        before = np.where(first, base, np.concatenate(([0], latest[:-1])))
        second = np.maximum.accumulate(np.minimum(ends, before))
        second_before = np.where(first, base, np.concatenate(([0], second[:-1])))
        for number, one in enumerate((before, second_before)):
            found[number][order] = np.where(one > base, one - base + low, 0)
    return found[0], found[1]


def _all_begun(parts: Parts, leads: Integers) -> Integers:
    """Returns when the last part that each part needs had begun."""
    last = np.full(int(parts.join.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, parts.join, parts.start_ns)
    if len(leads):
        np.maximum.at(last, leads[:, 0], parts.start_ns[leads[:, 1]])
    begun, led = last[parts.join], np.flatnonzero(parts.root >= 0)
    begun[led] = np.maximum(parts.start_ns[led], parts.start_ns[parts.root[led]])
    return begun
