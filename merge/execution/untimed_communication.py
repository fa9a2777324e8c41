"""Communication that the execution trace of a rank has and its timeline does not: it has kind and size, but no time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.group_ranks import text_of
from distprof.contract.rank_json import MOST_RANKS
from distprof.merge.execution.communication import BACKENDS, ISSUING, Communication
from distprof.merge.execution.dependencies.tensor_uses import tensors_in, values_of
from distprof.merge.execution.issued_with import PARAMETERS, with_what_was_given
from distprof.merge.execution.linking import PROCESS_GROUPS
from distprof.merge.execution.node_table import NodeTable
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.match.backend_names import SEND_RECV, op_of
from distprof.merge.run.traces.trace_identity import identity_of


def with_untimed(graph: RankGraph, known: Communication) -> Communication:
    """Adds the communication that only the execution trace has.

    Of calls that lie in each other, as the operator that issues and the work of its backend do, the innermost one is
    it. None of them may have a slice, or be known to have issued work that has one.

    Args:
        graph: The calls of the rank.
        known: Communication of its timeline.
    """
    if graph.table is None:
        return known
    place_of = np.full(len(graph.table.id), -1, np.int64)
    own = np.flatnonzero(graph.node >= 0)
    place_of[graph.node[own]] = own
    seen = {*known.place.tolist(), *known.issued_by.tolist()}
    places, issuers, ops = list[int](), list[int](), list[str]()
    for row, around in _innermost(graph.table):
        place, above = int(place_of[row]), [int(place_of[one]) for one in around]
        if place < 0 or graph.slice[place] >= 0 or seen & {place, *above}:
            continue
        named = next((one for one in around if graph.table.names[graph.table.name[one]].startswith(ISSUING)), row)
        places.append(place)
        issuers.append(int(place_of[named]) if named != row else -1)
        ops.append(str(_op(graph.table, named) or _op(graph.table, row)))
    return _added(graph, known, places, issuers, ops) if places else known


def _op(table: NodeTable, row: int) -> str | None:
    found = op_of(table.names[table.name[row]].rpartition(":")[2])
    return None if found == SEND_RECV else found


def _innermost(table: NodeTable) -> list[tuple[int, list[int]]]:
    """Rows of calls that are communication by their names and have no such call inside, with what is around them."""
    is_named = [name.startswith((*ISSUING, *BACKENDS)) for name in table.names]
    named = np.flatnonzero(np.array(is_named or [False], bool)[table.name])
    rows = [row for row in named.tolist() if _op(table, row) is not None]
    around = {row: _around(table, row) for row in rows}
    outer = {one for above in around.values() for one in above}
    return [(row, above) for row, above in around.items() if row not in outer]


def _around(table: NodeTable, row: int) -> list[int]:
    """Rows of the calls around a row, the nearest first."""
    found = list[int]()
    at = int(table.parent[row])
    while at >= 0:
        found.append(at)
        at = int(table.parent[at])
    return found


def _added(graph: RankGraph, known: Communication, places: Sequence[int], issuers: Sequence[int],
           ops: Sequence[str]) -> Communication:
    assert graph.table is not None
    groups = _groups(graph.table) or _groups_of_timeline(graph)
    schema = known.rows.schema
    given = {
        "op": ops, "group_ranks": [_group_of(graph, place, groups) for place in places],
        "size_bytes": [_num_bytes(graph, place) for place in places],
        "collective": [-2 - place for place in places], "complete": [True] * len(places)}
    rows = pl.DataFrame({name: pl.Series(values, dtype=pl.String if name in ("op", "group_ranks") else None).cast(
        schema[name]) for name, values in given.items()})
    rows = with_what_was_given(graph, pl.concat([known.rows.clear(), rows], how="diagonal"), issuers)
    return replace(known, place=np.concatenate((known.place, np.array(places, np.int64))),
                   issued_by=np.concatenate((known.issued_by, np.array(issuers, np.int64))),
                   rows=pl.concat([known.rows, rows], how="vertical"))


def _num_bytes(graph: RankGraph, place: int) -> int:
    assert graph.table is not None
    inputs = values_of(graph.table.texts.node(int(graph.node[place])).inputs)
    return sum(one.num_bytes for one in tensors_in(inputs))


def _groups(table: NodeTable) -> dict[str, str]:
    """Name of each process group that the execution trace lists -> its ranks, as text."""
    found = dict[str, str]()
    for number in (place for place, name in enumerate(table.names) if PROCESS_GROUPS in name):
        for row in np.flatnonzero(table.name == number).tolist():
            for text in values_of(table.texts.node(row).inputs):
                found |= _listed(text)
    return found


def _groups_of_timeline(graph: RankGraph) -> dict[str, str]:
    known = identity_of(graph.timeline.metadata).groups if graph.timeline is not None else ()
    return {one.name: text_of(one.ranks) for one in known}


def _listed(text: Any) -> dict[str, str]:
    """No ranks mean all, as torch writes it."""
    try:
        return {str(one["pg_name"]): text_of([int(rank) for rank in one["ranks"]] or range(
            min(int(one["group_size"]), MOST_RANKS))) for one in json.loads(text)}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return {}


def _group_of(graph: RankGraph, place: int, groups: dict[str, str]) -> str | None:
    """The ranks that take part: those of the only group, or of the one that NCCL's note around the call names."""
    if len(groups) < 2:
        return next(iter(groups.values()), None)
    table = graph.table
    assert table is not None
    for row in (int(graph.node[place]), *_around(table, int(graph.node[place]))):
        if table.names[table.name[row]] == PARAMETERS:
            named = [one for one in values_of(table.texts.node(row).inputs) if type(one) is list and len(one) == 2]
            return next((groups[one[0]] for one in named if type(one[0]) is str and one[0] in groups), None)
    return None
