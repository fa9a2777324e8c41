"""The first call of a rank that uses the result of each communication, by the storages in its execution trace."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Flags, Integers
from distprof.contract.collective_ops import COLLECTIVE_OPS
from distprof.contract.tables import WAIT_SLICE
from distprof.errors import DataError
from distprof.merge.execution.communication import WAITING, Communication
from distprof.merge.execution.dependencies.order_dependencies import BACKENDS
from distprof.merge.execution.dependencies.storage_dependencies import uses_at
from distprof.merge.execution.node_table import WRITES
from distprof.merge.execution.rank_execution import rank_calls, sources_of
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.operators.timeline.rank_timeline import OPERATOR
from distprof.merge.run.run_model import Run

UNKNOWN, UNUSED = -2, -1
"""Instead of a call: the tensors of the communication are unknown; no later call uses them."""
WRAPPING = ("_c10d_functional::_wrap_tensor_autograd",)
"""Operators that wrap the result of a functional collective in a tensor that waits when it is used."""
Places = Mapping[int, Sequence[int]]
"""Storage -> places of the calls that use it, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstUses:
    """The first uses on a rank, in the order in which its communication was issued."""

    ops: list[str]
    """Name of the operation."""
    call: Integers
    """Index into `calls` of the first call that uses its tensors, or `UNUSED` or `UNKNOWN`."""
    calls: list[str]
    """Operators that the timeline shows, in order of start."""


def first_uses(graph: RankGraph, found: Communication) -> FirstUses:
    """Finds the first uses of a rank.

    The result is a lower bound: a call that only makes a view counts as a use, and so does one of another tensor that
    reuses the memory of a freed one.

    Args:
        graph: The calls of the rank.
        found: The communication in it.
    """
    begun = found.rows.select(pl.coalesce("enqueue_ns", "start_ns").fill_null(0)).to_series().to_numpy()
    order = np.argsort(begun, kind="stable").tolist()
    shown = np.flatnonzero((graph.type == OPERATOR) & (graph.slice >= 0))
    users = _users(graph, found)
    place = np.array([_first(graph, found, row, *users) for row in order], np.int64)
    # for a use that the timeline does not show, the shown call before it is a lower bound
    number = np.maximum(np.searchsorted(shown, place, "right") - 1, 0)
    return FirstUses(ops=[str(op) for op in found.rows["op"].gather(order)],
                     call=np.where(place < 0, place, number),
                     calls=[graph.names[name] for name in graph.name[shown].tolist()])


def uses_of(run: Run) -> dict[int, FirstUses]:
    """Finds the first uses on the ranks of a run that have an execution trace.

    Raises:
        DataError: No rank has one, or one cannot be read.
    """
    sources = sources_of(run)
    ranks = [one for one in sources.ranks if one.execution_trace is not None]
    if not ranks:
        raise DataError(f"no execution traces in {run.path}: which operators use the results of communication is "
                        "unknown", hint="record them with distprof run --execution-trace")
    return {one.number: first_uses(*rank_calls(one, sources.rows.filter(pl.col("rank") == one.number), None))
            for one in ranks}


def _users(graph: RankGraph, found: Communication) -> tuple[Places, Places]:
    """Returns who uses and who writes each storage, excluding backends, waits and wrappers, and the calls in them."""
    using, writing = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for place in np.flatnonzero(~graph.on_device & (graph.node >= 0) & ~_apart(graph, found)).tolist():
        for storage, kind, _ in uses_at(graph, place):
            using[storage].append(place)
            if kind & WRITES:
                writing[storage].append(place)
    return using, writing


def _apart(graph: RankGraph, found: Communication) -> Flags:
    """Returns True for calls that do not count as uses: communication, waits and wrappers.

    Calls inside a wait complete the communication, e.g. by copying from the backend's buffer, and move with the wait.
    Calls on a thread of the backend are part of its work.
    """
    alone = [name.startswith(BACKENDS) or name in WRAPPING for name in graph.names]
    whole = [name in (*WAITING, WAIT_SLICE) for name in graph.names]
    is_alone, is_whole = (np.array(one or [False], bool)[graph.name] for one in (alone, whole))
    apart = is_alone | np.isin(np.arange(len(graph.name)), found.place)
    elsewhere = found.place[(found.place >= 0) & (found.issued_by >= 0)
                            & (graph.thread[found.place] != graph.thread[found.issued_by])]
    for place in (*np.flatnonzero(is_whole).tolist(), *elsewhere.tolist()):
        apart[_inside(graph, place)] = True
    return apart


def _inside(graph: RankGraph, place: int) -> Any:
    """Returns the places of a call and of the calls on its thread that it encloses."""
    places = np.arange(place, int(graph.inside_until[place]) + 1)
    return places[graph.thread[places] == graph.thread[place]]


def _first(graph: RankGraph, found: Communication, row: int, using: Places, writing: Places) -> int:
    op, issuer, place = found.rows["op"][row], int(found.issued_by[row]), int(found.place[row])
    if issuer < 0 or op not in COLLECTIVE_OPS or not COLLECTIVE_OPS[op].has_data:
        return UNKNOWN
    until = int(graph.inside_until[issuer])
    storages = _wrapped(graph, _storages(graph, {*range(issuer, until + 1), *([place] if place >= 0 else [])}), until)
    # reading sent data before it has left is allowed
    after = [_after(writing if op == "send" else using, storage, until) for storage in storages]
    return min((one for one in after if one >= 0), default=UNUSED) if storages else UNKNOWN


def _storages(graph: RankGraph, places: Iterable[int]) -> set[int]:
    return {storage for place in places for storage, _, _ in uses_at(graph, place)}


def _wrapped(graph: RankGraph, storages: set[int], after: int) -> set[int]:
    """Adds the storages of tensors that wrap these, such as functional collectives return."""
    wrapping = np.array([name in WRAPPING for name in graph.names] or [False], bool)[graph.name]
    for place in np.flatnonzero(wrapping & (graph.node >= 0)).tolist():
        own = _storages(graph, [place])
        if place > after and own & storages:
            storages |= own
    return storages


def _after(places: Places, storage: int, until: int) -> int:
    mine = places.get(storage, ())
    at = bisect_right(mine, until)
    return mine[at] if at < len(mine) else -1
