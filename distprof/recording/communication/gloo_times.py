"""Finds start and end of calls that gloo did.

gloo's events name neither group nor sequence number. They are joined with calls by what is known: the work of a group
is taken from one queue, in order, by the group's own threads; callbacks showed on which thread some of it ran, and
when. Whatever is ambiguous stays null.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from distprof.contract.collective_ops import POINT_TO_POINT, gloo_names
from distprof.recording.communication.collective_call import GLOO, BackendEvent, CollectiveCall, fill_times

SLACK_NS = 20_000
"""Maximum difference between the timeline's clock and the clock that calls are labelled with."""
NUM_THREADS = 2
"""Number of threads that gloo has per group."""
MOST_UNKNOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A piece of work that a call put into its group's queue."""

    call: CollectiveCall
    elements: int


Found = list[tuple[_Work, BackendEvent]]
Lanes = dict[int | str, list[BackendEvent]]


def time_on_caller(calls: Sequence[CollectiveCall], lanes: Mapping[int | str, list[BackendEvent]]) -> None:
    """Times sends, receives and blocking ops, which run on the calling thread; an event there proves that gloo did."""
    starts = {thread: [event.start_ns for event in lane] for thread, lane in lanes.items()}
    for call in calls:
        if call.work_elements or call.on_device or call.thread not in lanes:
            continue
        inside = lanes[call.thread][bisect_left(starts[call.thread], call.enqueue_ns):
                                    bisect_right(starts[call.thread], call.returned_ns)]
        if call.op in POINT_TO_POINT and len(inside) == 1 and inside[0].name.startswith(GLOO + call.op):
            fill_times(call, inside)
            call.start_ns = call.enqueue_ns  # not queued; gloo's event begins when the op is already under way
        elif call.op not in POINT_TO_POINT and inside:
            call.start_ns = call.enqueue_ns


def time_queues(calls: Sequence[CollectiveCall], lanes: Lanes) -> None:
    """Times collectives, which the threads of their group take from one queue."""
    groups: dict[str, list[CollectiveCall]] = defaultdict(list)
    threads: dict[str, set[int | str]] = defaultdict(set)
    callers = {call.thread for call in calls}
    for call in calls:
        if call.work_elements and not call.on_device:
            groups[call.group].append(call)
            threads[call.group] |= {call.runner} if call.runner is not None else set()
    shared = {thread for thread in lanes if sum(thread in own for own in threads.values()) > 1}
    unknown = sorted((thread for thread in set(lanes) - callers if not any(thread in own for own in threads.values())),
                     key=str)
    lacking = [group for group in groups if len(threads[group]) < NUM_THREADS]
    for group, queued in groups.items():
        if lacking == [group] and len(threads[group]) + len(unknown) <= NUM_THREADS:
            threads[group] |= set(unknown)  # they belong to no other group
        if not threads[group] & shared:
            _time_group(queued, _possible_lanes(threads[group], unknown, lanes), calls)


def _possible_lanes(own: set[int | str], unknown: Sequence[int | str], lanes: Lanes) -> list[Lanes]:
    """Returns possible sets of lanes of a group: its known threads alone, then with threads that no callback named."""
    others = [thread for thread in unknown if thread not in own]
    more = range(min(NUM_THREADS - len(own), len(others)) + 1 if len(others) <= MOST_UNKNOWN else 1)
    sets = [own | set(chosen) for number in more for chosen in combinations(others, number)]
    return [{thread: lanes[thread] for thread in threads if thread in lanes} for threads in sets]


def _time_group(queued: list[CollectiveCall], possible: list[Lanes], calls: Sequence[CollectiveCall]) -> None:
    anchors = {id(call): event for call in queued if (event := _anchor(call, possible[0])) is not None}
    found: Found = []
    if _nothing_between(queued, calls):
        ways = [_in_order(queued, lanes, anchors) for lanes in possible]
        whole = [joined for joined, is_whole in ways if is_whole]
        if len(possible) == 1 or len(whole) == 1:
            found = whole[0] if whole else ways[0][0]
    parts: dict[int, list[BackendEvent]] = defaultdict(list)
    for work, event in found:
        parts[id(work.call)].append(event)
    for call in queued:  # anchors are certain in any case
        if id(call) in anchors and len(call.work_elements) == 1:
            parts[id(call)] = [anchors[id(call)]]
    for call in queued:
        if len(parts[id(call)]) == len(call.work_elements):
            fill_times(call, parts[id(call)])


def _anchor(call: CollectiveCall, lanes: Lanes) -> BackendEvent | None:
    """Returns the event in which the callback ran: it runs before the event ends, on the same thread."""
    lane = lanes.get(call.runner) if call.runner is not None else None
    if not lane or call.stamp_ns is None:
        return None
    index = bisect_right(lane, call.stamp_ns, key=lambda event: event.start_ns) - 1
    event = lane[index] if index >= 0 else None
    if event is None or (event.end_ns is not None and event.end_ns + SLACK_NS < call.stamp_ns):
        return None
    return event if _fits(_Work(call=call, elements=call.work_elements[0]), event) else None


def _nothing_between(queued: list[CollectiveCall], calls: Sequence[CollectiveCall]) -> bool:
    """True if torch's sequence numbers show that every piece of work in the queue is labelled."""
    expected: int | None = None
    for call in calls:
        if call.group != queued[0].group:
            continue
        taken = len(call.work_elements) if call.work_elements else 1 if call.op in POINT_TO_POINT else None
        if expected is not None and taken is not None and call.group_sequence != expected + taken:
            return False
        expected = call.group_sequence  # blocking ops take any number of sequence numbers
    return True


def _in_order(queued: list[CollectiveCall], lanes: Lanes, anchors: Mapping[int, BackendEvent]) -> (
        tuple[Found, bool]):
    """Joins works and events between moments at which the queue was empty, if both are equally many.

    Work from before the first call, or that had not ended when the timeline did, makes the numbers differ: affected
    calls stay unknown, and the others are not shifted. Also returns whether every piece of work has its event.
    """
    events = sorted((event for lane in lanes.values() for event in lane), key=lambda event: event.start_ns)
    starts = [event.start_ns for event in events]
    found: Found = []
    since, begin, known_empty = queued[0].enqueue_ns, 0, False
    ends: list[int | None] = [*(call.enqueue_ns for call in queued[1:]), None]
    for index, until in enumerate(ends, 1):
        part = queued[begin:index]
        between = events[bisect_left(starts, since):len(events) if until is None else bisect_left(starts, until)]
        works = [_Work(call=call, elements=elements) for call in part for elements in call.work_elements]
        if len(works) != len(between) or any(_ends_after(event, until) for event in between):
            continue
        # the queue before the first call is unknown: only if all calls are over, equal numbers show that it was empty
        if known_empty or all(_is_over(call, until) for call in part):
            found += _walk(works, between, anchors)
            since, begin, known_empty = until or 0, index, True
    return found, begin == len(queued)


def _ends_after(event: BackendEvent, until_ns: int | None) -> bool:
    return event.end_ns is None or (until_ns is not None and event.end_ns > until_ns)


def _is_over(call: CollectiveCall, until_ns: int | None) -> bool:
    known = [time_ns for time_ns in (call.over_by_ns, call.end_ns) if time_ns is not None]
    return bool(known) and (until_ns is None or min(known) <= until_ns)


def _walk(works: Sequence[_Work], events: Sequence[BackendEvent], anchors: Mapping[int, BackendEvent]) -> Found:
    """Joins equally many works and events: each thread takes works in order; nothing is joined if that contradicts."""
    reserved = {id(event) for event in anchors.values()}
    lanes: Lanes = defaultdict(list)
    for event in events:
        lanes[event.thread].append(event)
    if len({id(work.call) for work in works}) == 1:  # which of the call's parts an event is does not matter
        fit = all(any(_fits(work, event) for work in works) for event in events)
        return list(zip(works, events, strict=True)) if fit else []
    heads = dict.fromkeys(lanes, 0)
    found: Found = []
    for work, following in zip(works, [*works[1:], None], strict=True):
        waiting = sorted((lane[heads[thread]] for thread, lane in lanes.items() if heads[thread] < len(lane)),
                         key=lambda event: event.start_ns)
        anchor = anchors.get(id(work.call))
        able = [event for event in waiting if (event is anchor if anchor is not None else id(event) not in reserved)
                and _fits(work, event)]
        if not able:
            return []
        if anchor is None and len(able) > 1 and _may_be_swapped(work, following, able, lanes, heads, anchors):
            return found
        found.append((work, able[0]))
        heads[able[0].thread] += 1
    return found


def _may_be_swapped(work: _Work, following: _Work | None, able: Sequence[BackendEvent], lanes: Lanes,
                    heads: Mapping[int | str, int], anchors: Mapping[int, BackendEvent]) -> bool:
    """True if the thread whose event starts later may have been the first to take work from the queue."""
    first, second = able[:2]
    if following is None or not (_fits(following, first) and _fits(work, second)):
        return False
    if anchors.get(id(following.call), second) is not second and anchors.get(id(following.call)) is not first:
        return False
    before = heads[second.thread] - 1
    free_ns = lanes[second.thread][before].end_ns if before >= 0 else 0
    return free_ns is not None and free_ns < first.start_ns


def _fits(work: _Work, event: BackendEvent) -> bool:
    call = work.call
    return (event.name.removeprefix(GLOO) in gloo_names(call.op) and event.start_ns >= call.enqueue_ns
            and event.elements in (None, work.elements)
            and (call.over_by_ns is None or (event.end_ns is not None and event.end_ns <= call.over_by_ns + SLACK_NS)))
