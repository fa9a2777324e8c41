"""Orders the calls so that each ends before what depends on it begins, as a replay needs it.

A call that encloses others works before, between and after them. As a single node, all of its work would come before
the enclosed calls, and before the communication issued there, although it ran meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.merge.execution.communication import Communication, issuing_dependencies, tensor_uses
from distprof.merge.execution.dependencies.order_dependencies import (
    BACKENDS,
    backwards,
    main_thread,
    named,
    next_of_thread,
    order_dependencies,
)
from distprof.merge.execution.dependencies.storage_dependencies import Edges, edges, storage_dependencies
from distprof.merge.execution.rank_graph import COMMUNICATION_THREADS, PLACES, RankGraph
from distprof.merge.execution.waits import Stretch, Wait, between, stood_still, waits_of, with_bounds
from distprof.merge.operators.timeline.rank_timeline import OPERATOR

CONTINUED = " (continued)"
"""Suffix of the name of a node that continues a call after calls inside it."""
OUTSIDE = "outside of calls"
"""Name of nodes for the time between calls of a thread, which is spent in Python."""
GAP_NS = 10_000
"""Shorter pauses get no node."""
LEAST_NS = ((GAP_NS, None), (0, None), (0, 100_000), (0, 10_000), (0, 0))
"""Minimum duration of a continuation to get its own node, in ns: of a call in which a thread waits or issues
communication, and of any other call; None: never. The first pair is used with which no chain of dependencies takes
longer than the recording; if there is none, the last pair."""


def in_order(graph: RankGraph, found: Communication) -> tuple[RankGraph, Communication, Edges]:
    """Splits and orders the calls, and finds the dependencies; no chain of them takes longer than the recording, if one
    of `LEAST_NS` achieves that.

    Returns:
        Graph and communication with new places, and the dependencies between these.
    """
    graph, found = with_unseen(graph, found)
    waits = waits_of(graph, found)
    graph = with_bounds(graph, found, waits)
    still = stood_still(graph, waits)
    for least_ns in LEAST_NS:
        placed, communication, order = _placed(graph, found, waits, still, least_ns)
        needed = edges(len(placed.name), [
            storage_dependencies(placed, tensor_uses(placed, communication)), *order_dependencies(placed),
            *issuing_dependencies(placed, communication), _waiting(placed, waits, order)])
        ends = placed.start_ns + placed.duration_ns
        if longest_chain_ns(placed, needed) <= int(ends.max() - placed.start_ns.min()):
            break
    return placed, communication, needed


def longest_chain_ns(graph: RankGraph, needed: Edges) -> int:
    """Returns the duration of the longest chain of dependencies, each call without the calls inside it."""
    done = list[int]()
    for place, own_ns in enumerate(graph.self_ns.tolist()):
        done.append(own_ns + max((done[one] for one in needed.of(place)), default=0))
    return max(done, default=0)


def _placed(graph: RankGraph, found: Communication, waits: Sequence[Wait], still: Mapping[int, list[Stretch]],
            least_ns: tuple[int, int | None]) -> tuple[RankGraph, Communication, Integers]:
    """Adds places for continuations and puts waits after their communication; returns also each place's new place."""
    own = graph.self_ns.copy()
    for place, stretches in still.items():
        own[place] -= sum(end - start for start, end in stretches)
    holding, whole, begun = _holding(graph, found, waits, still), set(found.place.tolist()), _begun(graph, found)
    pieces = [(place, start, end) for place, start, end in _late(graph, still, begun) if place not in whole and (
        least := 0 if place in begun else least_ns[place not in holding]) is not None and end - start >= least]
    for place, start, end in pieces:
        own[place] -= end - start
    graph = _with_pieces(replace(graph, self_ns=np.maximum(own, 0)), pieces)
    graph = _with_gaps(graph, waits)
    graph, order = _sorted(graph, waits)
    return graph, replace(found, place=order[found.place], issued_by=order[found.issued_by]), order


def _holding(graph: RankGraph, found: Communication, waits: Sequence[Wait],
             still: Mapping[int, list[Stretch]]) -> set[int]:
    """Returns the calls inside which a thread waits or issues communication: later work must stay after it."""
    calls = [*still, *(one.place for one in waits), *found.issued_by.tolist()]
    calls, holding = [place for place in calls if place >= 0], set(still)
    for place in calls:
        above = int(graph.parent[place])
        while above >= 0 and above not in holding:
            holding.add(above)
            above = int(graph.parent[above])
    return holding


def _begun(graph: RankGraph, found: Communication) -> dict[int, int]:
    """Returns operator -> start of the backend's work, for operators that had not returned by then."""
    issued = zip(found.issued_by.tolist(), found.place.tolist(), strict=True)
    return {issuer: int(graph.start_ns[place]) for issuer, place in issued
            if issuer >= 0 and place >= 0 and not graph.on_device[place]
            and graph.start_ns[issuer] < graph.start_ns[place] < graph.end_ns(issuer)}


def _late(graph: RankGraph, still: Mapping[int, list[Stretch]], begun: Mapping[int, int]) -> (
        Iterator[tuple[int, int, int]]):
    """Yields where calls continue after calls inside them, after a wait, or after the start of what they issued."""
    inside = graph.inside()
    for place in sorted({*inside, *still, *begun}):
        whole = int(graph.start_ns[place]), graph.end_ns(place)
        cut = begun.get(place, whole[0])
        for start, end in between(whole, [*inside.get(place, ()), *still.get(place, ())]):
            parts = [(start, cut), (cut, end)] if start < cut < end else [(start, end)]
            yield from ((place, *part) for part in parts if part[0] > whole[0])


def _with_pieces(graph: RankGraph, pieces: Sequence[tuple[int, int, int]]) -> RankGraph:
    """Adds a node for each of these continuations."""
    if not pieces:
        return graph
    of, start, end = np.array(pieces, np.int64).T
    names = [f"{graph.names[name]}{CONTINUED}" for name in graph.name[of].tolist()]
    return _with_nodes(graph, names, start, end, thread=graph.thread[of], parent=of)


def _with_gaps(graph: RankGraph, waits: Sequence[Wait]) -> RankGraph:
    """Adds nodes for the time between calls of the main thread in which no other thread makes a call either."""
    if graph.timeline is None:
        return graph
    host = np.flatnonzero(~graph.on_device & (graph.parent < 0) & (graph.duration_ns > 0)
                          & ~named(graph, BACKENDS)[graph.name])
    if not len(host):
        return graph
    main = main_thread(graph)
    mine = np.flatnonzero(graph.thread == main)
    busy = [(int(graph.start_ns[place]), graph.end_ns(place)) for place in host.tolist()]
    still = [(one.start_ns, min(one.end_ns, graph.end_ns(one.communication))) for one in waits if one.thread == main]
    whole = int(graph.start_ns[mine].min()), int((graph.start_ns + graph.duration_ns)[mine].max())
    gaps = [one for one in between(whole, [*busy, *still]) if one[1] - one[0] >= GAP_NS]
    start, end = np.array(gaps, np.int64).reshape(-1, 2).T
    return _with_nodes(graph, [OUTSIDE] * len(gaps), start, end, thread=np.full(len(gaps), main),
                       parent=np.full(len(gaps), -1))


def with_unseen(graph: RankGraph, found: Communication) -> tuple[RankGraph, Communication]:
    """Adds nodes for communication that no slice shows, with the times that its recorder noted; not with devices."""
    rows = np.flatnonzero((found.place < 0) & (found.issued_by >= 0))
    if not len(rows) or graph.timeline is None or graph.on_device.any():
        return graph, found
    about = found.rows[rows.tolist()]
    issued = graph.start_ns[found.issued_by[rows]]
    start = np.maximum(about["start_ns"].fill_null(0).to_numpy(), issued)
    end = np.maximum(about.select(pl.coalesce("end_ns", "wait_end_ns").fill_null(0)).to_series().to_numpy(), start)
    number, place = len(graph.name), found.place.copy()
    place[rows] = number + np.arange(len(rows))
    thread = COMMUNICATION_THREADS + np.arange(len(rows))
    return _with_nodes(graph, [str(op) for op in about["op"]], start, end, thread=thread,
                       parent=np.full(len(rows), -1)), replace(found, place=place)


def _with_nodes(graph: RankGraph, names: Sequence[str], start: Integers, end: Integers, *, thread: Integers,
                parent: Integers) -> RankGraph:
    """Appends calls to the graph."""
    known, number = dict.fromkeys(names), len(graph.name)
    name_of = {name: len(graph.names) + place for place, name in enumerate(known)}
    nowhere = np.full(len(names), -1)
    more = {"name": np.array([name_of[name] for name in names], np.int64), "type": np.full(len(names), OPERATOR),
            "start_ns": start, "duration_ns": end - start, "self_ns": end - start, "thread": thread, "parent": parent,
            "node": nowhere, "slice": nowhere, "inside_until": number + np.arange(len(names))}
    arrays: dict[str, Any] = {key: np.concatenate((getattr(graph, key), values)) for key, values in more.items()}
    return replace(graph, **arrays, names=[*graph.names, *known])


def _sorted(graph: RankGraph, waits: Sequence[Wait]) -> tuple[RankGraph, Integers]:
    """Sorts the graph by time, with waits after their communication, which the backend may begin after the wait began.

    Returns:
        The graph, and the new place of each place, followed by -1 for place -1.
    """
    begin, moved, ends = graph.start_ns.copy(), np.zeros(len(graph.name), bool), graph.start_ns + graph.duration_ns
    for one in waits:
        last = graph.start_ns[graph.inside_until[one.communication]]
        is_leaf = one.place >= 0 and graph.inside_until[one.place] == one.place
        if is_leaf and begin[one.place] <= last <= ends[one.place]:
            begin[one.place], moved[one.place] = last, True
    order = np.lexsort((np.arange(len(begin)), moved, begin))
    new = np.append(np.argsort(order), -1)
    graph = replace(graph, start_ns=begin, duration_ns=ends - begin)
    arrays = {key: getattr(graph, key)[order] for key in PLACES}
    return replace(graph, **arrays | {"parent": new[arrays["parent"]]}).with_insides(), new


def _waiting(graph: RankGraph, waits: Sequence[Wait], order: Integers) -> tuple[Integers, Integers]:
    """Returns pairs of places: waits, or what follows waits that no call shows, depend on the communication."""
    communication, place, thread, ends = np.array(
        [(order[one.communication], order[one.place], one.thread, one.end_ns) for one in waits],
        np.int64).reshape(-1, 4).T
    ends = np.minimum(ends, (graph.start_ns + graph.duration_ns)[communication])
    later = np.where(place >= 0, place, next_of_thread(graph, thread, ends))
    # the next backward pass also depends on what the main thread waited for
    begins = np.array(sorted((int(graph.start_ns[first]), first) for first, _ in backwards(graph)), np.int64)
    following = np.searchsorted(begins.reshape(-1, 2)[:, 0], ends)
    first = np.append(begins.reshape(-1, 2)[:, 1], -1)[following]
    backward = np.where(thread == main_thread(graph), first, -1)
    whole = graph.inside_until[communication]
    return np.concatenate((later, later, backward)), np.concatenate((communication, whole, whole))
