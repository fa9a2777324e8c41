"""Pieces: the work in front of each event of a job, by activity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distprof.arrays import Integers
from distprof.merge.activity.activities import Activities, Activity
from distprof.merge.activity.rank_activity import RankActivity
from distprof.merge.replay.graph import WAIT, Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Work by event and activity; some rows may be of the same two."""

    event: Integers
    label: Integers
    """Number of the activity."""
    ns: Integers


def pieces_of(graph: Graph, ranks: Integers, did: Mapping[int, RankActivity], activities: Activities,
              ahead: Integers) -> Pieces:
    """Splits the work in front of each event by activity; `did` is by clocks that are `ahead` of those of the graph."""
    events, own = graph.events, work_of(graph)
    unknown = activities.number(Activity("unknown"))
    timed = np.isin(ranks, list(did))[events.rank] if len(events) else np.zeros(0, bool)
    plain = np.flatnonzero(~timed & (own > 0))
    found = [(plain, np.full(len(plain), unknown), own[plain])]
    for index, number in enumerate(ranks.tolist()):
        if number in did:
            first, stop = np.searchsorted(events.rank, [index, index + 1])
            found.append(_of_rank(first, events.at_ns[first:stop] + ahead[index], own[first:stop], did[number],
                                    activities))
    event, label, ns = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Pieces(event=event, label=label, ns=ns)


def work_of(graph: Graph) -> Integers:
    """Time in front of each event in which the thread did not wait. A call of another thread may lie inside a wait."""
    events, own = graph.events, graph.own_ns
    if not len(events):
        return own
    origin = int(events.began_ns.min())
    # a minimum over all events behind one then stays within its rank
    base = events.rank * (int(events.at_ns.max()) - origin + 1) - origin
    began = np.minimum(events.began_ns, events.at_ns) + base
    waits_from = np.minimum.accumulate(began[::-1])[::-1] - base
    before = events.at_ns - own
    is_wait = events.kind == WAIT
    return np.where(is_wait, own, np.clip(waits_from - before, 0, own))


def _of_rank(first: int, at: Integers, own: Integers, did: RankActivity,
             activities: Activities) -> tuple[Integers, Integers, Integers]:
    """Of one rank, whose first event is `first`. Work ends at the event, and where a thread waited then, before it."""
    starts = np.concatenate((at[:1], at[:-1]))
    ends = starts + own
    edges = np.concatenate((starts, ends, did.lane.starts, did.lane.ends))
    edges = np.unique(edges[(edges >= starts[0]) & (edges <= ends[-1])])
    event = np.searchsorted(starts, edges[:-1], "right") - 1
    # of events at one instant, the last one has the work behind them
    inside = edges[:-1] < ends[event]
    return first + event[inside], labels_at(edges[:-1], did, activities)[inside], np.diff(edges)[inside]


def labels_at(times: Integers, did: RankActivity, activities: Activities) -> Integers:
    """Numbers of the activities at these times; the host's where none is known, and unknown where nothing was seen."""
    known, label = did.lane.at(times)
    host, unknown = activities.number(Activity("host")), activities.number(Activity("unknown"))
    began, ended = (did.lane.starts[0], did.lane.ends[-1]) if len(did.lane.starts) else (0, 0)
    return np.where(known, label, np.where((times >= began) & (times < ended), host, unknown))
