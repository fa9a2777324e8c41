"""Graphs in which threads wait elsewhere: later, after work that does not need what they wait for, or immediately."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distprof.arrays import Flags, Floats, Integers
from distprof.merge.replay.graph import CALL, NOTHING, WAIT, Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """Waits, and the measured times to which they are moved."""

    event: Integers
    until_ns: Integers


def work_between(graph: Graph, later: Later) -> Any:
    """Returns how much work of its thread is between each wait and the time to which it is moved."""
    done = np.cumsum(graph.own_ns)
    following, share = _places(graph, later)
    return done[following] - (1 - share) * graph.own_ns[following] - done[later.event]


def with_later_waits(graph: Graph, less_ns: Floats, later: Later) -> tuple[Graph, Integers]:
    """Moves waits, in a job with less work.

    Threads do everything else in the same order.

    Args:
        graph: Any graph.
        less_ns: How much less work there is before each event.
        later: The waits, each at most once, with a later time at which the thread works.

    Returns:
        The graph, and the new index of each event.
    """
    events, own = graph.events, graph.own_ns - less_ns
    done, at, turn = np.cumsum(own), events.at_ns.copy(), np.arange(len(own), dtype=float)
    following, share = _places(graph, later)
    done[later.event] = done[following] - (1 - share) * own[following]
    turn[later.event], at[later.event] = following - 0.5, later.until_ns
    order = np.lexsort((np.arange(len(own)), done, turn, events.rank))
    work = np.diff(done[order], prepend=0)
    work[np.diff(events.rank, prepend=-1) != 0] = 0  # there is no work before the first event of a rank
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    began = np.where(at > events.at_ns, at, events.began_ns)
    moved = replace(events, kind=events.kind[order], part=events.part[order], began_ns=began[order], at_ns=at[order])
    return replace(graph, events=moved, own_ns=work, wake_ns=graph.wake_ns[order]), place


def _places(graph: Graph, later: Later) -> tuple[Integers, Floats]:
    """Returns the event after each wait at its new place, and the fraction of the work before that event done by
    then."""
    events, own = graph.events, graph.own_ns
    origin, span = int(events.at_ns.min()), int(np.ptp(events.at_ns)) + 1
    by_rank = events.rank * span + (events.at_ns - origin)
    following = np.searchsorted(by_rank, events.rank[later.event] * span + (later.until_ns - origin))
    since = np.clip(later.until_ns - events.at_ns[following - 1], 0, own[following])
    return following, np.divide(since, own[following], out=np.ones(len(since)), where=own[following] > 0)


def with_waits_at_once(graph: Graph, parts: Flags) -> tuple[Graph, Integers]:
    """Lets threads wait for some parts as soon as they have called them, instead of where they did.

    Args:
        graph: Any graph.
        parts: True for these parts.

    Returns:
        The graph, and the new index of each event.
    """
    events = graph.events
    chosen = (events.part >= 0) & np.append(parts, False)[events.part]
    calls, gone = np.flatnonzero(chosen & (events.kind == CALL)), chosen & (events.kind == WAIT)
    kept = replace(events, kind=np.where(gone, NOTHING, events.kind), part=np.where(gone, -1, events.part),
                   began_ns=np.where(gone, events.at_ns, events.began_ns))

    def inserted(values: Integers, new: Any) -> Integers:
        return np.insert(values, calls + 1, new)

    at = events.at_ns[calls]
    moved = replace(kept, rank=inserted(kept.rank, events.rank[calls]), kind=inserted(kept.kind, WAIT),
                    part=inserted(kept.part, events.part[calls]), began_ns=inserted(kept.began_ns, at),
                    at_ns=inserted(kept.at_ns, at))
    place = np.arange(len(events)) + np.searchsorted(calls, np.arange(len(events)))
    return replace(graph, events=moved, own_ns=inserted(graph.own_ns, 0),
                   wake_ns=inserted(np.where(gone, 0, graph.wake_ns), 0)), place
