"""Finds which calls and kernels of a rank are communication, and which operators issued them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.contract.collective_ops import COLLECTIVE_OPS, gloo_names
from distprof.merge.execution.dependencies.order_dependencies import BACKENDS
from distprof.merge.execution.dependencies.storage_dependencies import Use
from distprof.merge.execution.issued_with import with_sizes, with_what_was_given
from distprof.merge.execution.node_table import READS, WRITES
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.match.backend_names import SEND_RECV, op_of

ISSUING = ("c10d::", "_c10d_functional::")
"""Prefixes of operators that issue communication."""
NESTED = 8
"""Maximum nesting depth of such operators."""
IN_FLIGHT = 1000
"""Maximum number of operations that may be issued before the first of them runs."""
WAITING = ("_c10d_functional::wait_tensor", "c10d_functional::wait_tensor")
"""Operators that wait for communication and do nothing else with its result."""
KERNELS = ("nccl", "rccl")
"""Substrings of the names of communication kernels, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """The communication of a rank in its graph, one value or row per operation."""

    place: Integers
    """Place of the backend's work or of the kernel; -1 if unknown."""
    rows: pl.DataFrame
    """Rows of the rank as `match` returns them."""
    issued_by: Integers
    """Place of the operator that issued it; -1 if unknown."""


def communication(graph: RankGraph, rows: pl.DataFrame) -> Communication:
    """Finds the communication of a rank in its graph.

    Args:
        graph: The calls of the rank.
        rows: Its communication, with times on its own clock.
    """
    place = places_of(rows, graph)
    rows = with_sizes(graph, rows, place.tolist())
    is_issuing = np.array([name.startswith(ISSUING) for name in graph.names] or [False], bool)
    # the position of calls without a slice is unknown
    operators = np.flatnonzero(is_issuing[graph.name] & ~graph.on_device & (graph.slice >= 0))
    storages = _storages(graph, operators)
    issued_by = [_issuer(graph, operators, storages, *one) for one in
                 zip(place.tolist(), rows["enqueue_ns"].to_list(), rows["op"].to_list(), strict=True)]
    return Communication(place=place, rows=with_what_was_given(graph, rows, issued_by),
                         issued_by=np.array(issued_by, np.int64))


def _storages(graph: RankGraph, places: Integers) -> dict[int, set[int]]:
    table = graph.table
    return {place: set() if table is None or graph.node[place] < 0 else set(
        table.use_storage[table.use_begin[graph.node[place]]:table.use_begin[graph.node[place] + 1]].tolist())
        for place in places.tolist()}


def _issuer(graph: RankGraph, operators: Integers, storages: Mapping[int, set[int]], place: int,
            enqueue_ns: int | None, op: str) -> int:
    """Returns the operator that encloses the work, else the call's time, else the last earlier one with its tensors.

    An operator that encloses the call's time may be of another thread and issue another op. For work without tensors,
    the third choice is the last earlier operator that issues this op.
    """
    at = int(graph.parent[place]) if place >= 0 else -1
    while at >= 0:
        if at in storages:
            return at
        at = int(graph.parent[at])
    begun = graph.start_ns[operators]
    if enqueue_ns is not None:
        last = int(np.searchsorted(begun, enqueue_ns, "right")) - 1
        for one in operators[max(last - NESTED, 0):last + 1][::-1].tolist():
            if graph.start_ns[one] + graph.duration_ns[one] >= enqueue_ns and _may_issue(graph.names[graph.name[one]],
                                                                                        op):
                return int(one)
    if place < 0:
        return -1
    own = _storages(graph, np.array([place]))[place]
    before = operators[:int(np.searchsorted(begun, graph.start_ns[place], "right"))]
    names = {f"c10d::{name}" for name in COLLECTIVE_OPS[op].c10d} if op in COLLECTIVE_OPS else set()
    return next((int(one) for one in before[::-1][:IN_FLIGHT].tolist()
                 if (own & storages[one] if own else graph.names[graph.name[one]] in names)), -1)


def _may_issue(operator: str, op: str) -> bool:
    """Returns False if the operator is named after another op."""
    named = op_of(operator.rpartition(":")[2])
    return named in (None, SEND_RECV) or op in (named, *gloo_names(str(named)))


def places_of(rows: pl.DataFrame, graph: RankGraph) -> Integers:
    """Returns the place of each row: the backend's work that begins or ends at the same time; -1 for none.

    Times of a gloo send or receive begin with its call and end with its work.
    """
    names = [name.startswith(BACKENDS) or any(word in name.lower() for word in KERNELS) for name in graph.names]
    candidates = np.flatnonzero(np.array(names or [False], bool)[graph.name] & (graph.slice >= 0))
    # prefer a kernel to a host range at the same time
    candidates = candidates[np.argsort(~graph.on_device[candidates], kind="stable")]
    ends = graph.start_ns + graph.duration_ns
    found = np.full(len(rows), -1, np.int64)
    for column, times in (("start_ns", graph.start_ns), ("end_ns", ends)):
        free = defaultdict[int, list[int]](list)
        for place in candidates[~np.isin(candidates, found)][::-1].tolist():
            free[int(times[place])].append(place)
        for row, at in enumerate(rows[column].to_list()):
            if found[row] < 0 and at is not None and free.get(at):
                found[row] = free[at].pop()
    return found


def tensor_uses(graph: RankGraph, found: Communication) -> Mapping[int, Sequence[Use]]:
    """Returns the tensors of communication, for the places whose own tensor uses they replace.

    Host work of a backend gets the tensors of the operator that issued it, which only passes them on. A kernel depends
    on tensors through its operator.
    """
    table, uses = graph.table, dict[int, Sequence[Use]]()
    if table is None:
        return uses
    for place, operator, op in zip(found.place.tolist(), found.issued_by.tolist(), found.rows["op"].to_list(),
                                   strict=True):
        if operator < 0:
            continue
        kind = READS if op == "send" else READS | WRITES
        inside = range(operator, int(graph.inside_until[operator]) + 1)
        nodes = {int(graph.node[one]) for one in (*inside, place) if one >= 0}
        storages = {int(table.use_storage[at]): bool(table.use_on_device[at]) for node in nodes if node >= 0
                    for at in range(int(table.use_begin[node]), int(table.use_begin[node + 1]))}
        own = [(storage, kind, on_device) for storage, on_device in storages.items()]
        for one in inside:
            uses[one] = []
        uses[operator if place < 0 or graph.on_device[place] else place] = own
    return uses


def issuing_dependencies(graph: RankGraph, found: Communication) -> list[tuple[Integers, Integers]]:
    """Returns pairs of places: work depends on the operator that issued it, and on what its thread had done by then."""
    known = np.flatnonzero((found.place >= 0) & (found.issued_by >= 0))
    place, issuer = found.place[known], found.issued_by[known]
    last = issuer.copy()
    for thread in np.unique(graph.thread[issuer]):
        calls, mine = np.flatnonzero(graph.thread == thread), graph.thread[issuer] == thread
        last[mine] = calls[np.searchsorted(calls, place[mine]) - 1]
    inside = (last >= issuer) & (last <= graph.inside_until[issuer]) & ~graph.on_device[place]
    return [(place, issuer), (place[inside], last[inside])]
