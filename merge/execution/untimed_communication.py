"""Communication that is in the execution trace of a rank but not in its timeline; it has op and size, but no time."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.collective_ops import gloo_names, text_of
from distprof.contract.run_json import MOST_RANKS
from distprof.merge.execution.communication import IN_FLIGHT, ISSUING, Communication
from distprof.merge.execution.dependencies.order_dependencies import BACKENDS
from distprof.merge.execution.dependencies.tensor_uses import values_of
from distprof.merge.execution.issued_with import PARAMETERS, bytes_given, with_what_was_given
from distprof.merge.execution.linking import PROCESS_GROUPS
from distprof.merge.execution.node_table import NodeTable
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.match.backend_names import SEND_RECV, op_of
from distprof.merge.run.traces.trace_identity import identity_of


def with_untimed(graph: RankGraph, known: Communication) -> Communication:
    """Adds the communication that only the execution trace has.

    This is work of backends without a slice, and issuing operators without a slice for which no work is recorded. It is
    left out if the timeline shows communication that the same operator issued.

    Args:
        graph: The calls of the rank.
        known: The communication of its timeline.
    """
    if graph.table is None:
        return known
    place_of = np.full(len(graph.table.id), -1, np.int64)
    own = np.flatnonzero(graph.node >= 0)
    place_of[graph.node[own]] = own
    calls = _calls(graph.table)
    known = _with_issuers(graph, known, {int(place_of[row]): int(place_of[by]) for row, by, _ in calls if by >= 0})
    issued_by = known.issued_by[known.issued_by >= 0]
    seen = {*known.place.tolist(), *issued_by[graph.slice[issued_by] >= 0].tolist()} - {-1}
    found = list[tuple[int, int, str]]()
    for row, issuer, op in calls:
        place, by = int(place_of[row]), int(place_of[issuer]) if issuer >= 0 else -1
        if place >= 0 and graph.slice[place] < 0 and not seen & {place, by}:
            found.append((place, by, op))
    known, found = _with_recorded(known, found)
    return _added(graph, known, *map(list, zip(*found, strict=True))) if found else known


def _with_recorded(known: Communication, found: list[tuple[int, int, str]]) -> (
        tuple[Communication, list[tuple[int, int, str]]]):
    """Places calls that a recorder noted and the timeline lacks, like those of other threads: if there are as many of
    an op as in the execution trace, the N-th is the N-th there. Returns them with the calls that remain."""
    place, left = known.place.copy(), list[tuple[int, int, str]]()
    alone = known.rows.with_row_index("row").filter((known.place < 0) & (known.issued_by < 0)).sort("enqueue_ns")
    for op in dict.fromkeys(op for *_, op in found):
        mine, rows = [one for one in found if one[2] == op], alone.filter(pl.col("op") == op)["row"].to_numpy()
        if len(mine) == len(rows):
            place[rows] = [one[0] for one in mine]
        else:
            left += mine
    return replace(known, place=place), left


def _with_issuers(graph: RankGraph, known: Communication, issuers: Mapping[int, int]) -> Communication:
    """Sets the operators of work whose operator the timeline does not show."""
    issued_by = [issuers.get(place, -1) if by < 0 <= place else by for place, by in zip(
        known.place.tolist(), known.issued_by.tolist(), strict=True)]
    if issued_by == known.issued_by.tolist():
        return known
    return replace(known, issued_by=np.array(issued_by, np.int64),
                   rows=with_what_was_given(graph, known.rows, issued_by))


def _calls(table: NodeTable) -> list[tuple[int, int, str]]:
    """Returns (row, row of the issuing operator or -1, op) of each communication call."""
    issuing, backends = _rows_of(table, ISSUING), _rows_of(table, BACKENDS)
    outer = {one for row in issuing for one in _around(table, row)}
    inner = {row: op for row, op in issuing.items() if row not in outer}
    rows = list(inner)
    by = {row: _issuer(table, row, op, inner, rows) for row, op in backends.items()}
    alone = inner.keys() - {*by.values()}
    return [*((row, by[row], op) for row, op in backends.items()), *((row, -1, inner[row]) for row in sorted(alone))]


def _rows_of(table: NodeTable, begin: tuple[str, ...]) -> dict[int, str]:
    """Returns row -> op of the calls whose names have one of these prefixes and contain an op."""
    ops = {number: op for number, name in enumerate(table.names) if name.startswith(begin)
           and (op := op_of(name.rpartition(":")[2])) not in (None, SEND_RECV)}
    return {row: str(ops[int(table.name[row])]) for row in np.flatnonzero(np.isin(table.name, list(ops))).tolist()}


def _issuer(table: NodeTable, row: int, op: str, issuing: Mapping[int, str], rows: Sequence[int]) -> int:
    """Returns the operator that encloses a backend's work, else the last earlier one of its op; `rows`: operators."""
    at = bisect_left(rows, row)
    before = reversed(rows[max(at - IN_FLIGHT, 0):at])
    same = (one for one in before if op in (issuing[one], *gloo_names(issuing[one])))
    return next((one for one in _around(table, row) if one in issuing), next(same, -1))


def _around(table: NodeTable, row: int) -> list[int]:
    """Returns the rows of the calls that enclose a row, innermost first."""
    found = list[int]()
    at = int(table.parent[row])
    while at >= 0:
        found.append(at)
        at = int(table.parent[at])
    return found


def _added(graph: RankGraph, known: Communication, places: list[int], issuers: list[int], ops: list[str]) -> (
        Communication):
    assert graph.table is not None
    groups = _groups(graph.table) or _groups_of_timeline(graph)
    schema = known.rows.schema
    given: dict[str, list[Any]] = {
        "op": ops, "group_ranks": [_group_of(graph, place, groups) for place in places],
        "size_bytes": [bytes_given(graph.table.texts.node(int(graph.node[place])).inputs) for place in places],
        "collective": [-2 - place for place in places], "complete": [True] * len(places)}
    rows = pl.DataFrame({name: pl.Series(values, dtype=pl.String if name in ("op", "group_ranks") else None).cast(
        schema[name]) for name, values in given.items()})
    rows = with_what_was_given(graph, pl.concat([known.rows.clear(), rows], how="diagonal"), issuers)
    return replace(known, place=np.concatenate((known.place, np.array(places, np.int64))),
                   issued_by=np.concatenate((known.issued_by, np.array(issuers, np.int64))),
                   rows=pl.concat([known.rows, rows], how="vertical"))


def _groups(table: NodeTable) -> dict[str, str]:
    """Returns name -> ranks, as text, of the process groups that the execution trace lists."""
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
    """Parses a list of process groups; as torch writes it, no ranks means all."""
    try:
        return {str(one["pg_name"]): text_of([int(rank) for rank in one["ranks"]] or range(
            min(int(one["group_size"]), MOST_RANKS))) for one in json.loads(text)}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return {}


def _group_of(graph: RankGraph, place: int, groups: dict[str, str]) -> str | None:
    """Returns the participating ranks: of the only group, or of the group in NCCL's node at or around the call."""
    if len(groups) < 2:
        return next(iter(groups.values()), None)
    table = graph.table
    assert table is not None
    for row in (int(graph.node[place]), *_around(table, int(graph.node[place]))):
        if table.names[table.name[row]] == PARAMETERS:
            named = [one for one in values_of(table.texts.node(row).inputs) if type(one) is list and len(one) == 2]
            return next((groups[one[0]] for one in named if type(one[0]) is str and one[0] in groups), None)
    return None
