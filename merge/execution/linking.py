"""Finds the slice of the timeline of each node of an execution trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from distprof.merge.execution.node_table import NodeTable
from distprof.merge.match.sequence_alignment import align
from distprof.merge.operators.timeline.rank_timeline import ANNOTATION, OPERATOR, RankTimeline
from distprof.merge.scan.scanned_columns import NONE

ROOTS = ("[pytorch|profiler|execution_trace|", "[pytorch|profiler|execution_graph|")
"""How names of nodes begin that stand for a process or a thread."""
FUNCTION = "Record function id"
"""Key of `args` of slices; the number of the call, which nodes have as well."""
STREAM = "stream"
"""Key of `args` of kernels."""
PROCESS_GROUPS = "process_group:init"
"""In the name of a node that lists the process groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Which slice belongs to which node."""

    slice: Any
    """Row of the timeline, a node; -1 where there is none."""
    linked_by: Literal["id", "order"] | None
    """`order`: the slices have no numbers of calls, so that equal names in the same order are taken for the same call;
    None: there is no timeline."""
    num_calls: int
    """Nodes that are calls, which should have a slice."""

    @property
    def num_linked(self) -> int:
        return int(np.count_nonzero(self.slice >= 0))

    @property
    def ratio(self) -> float | None:
        """Share of the calls that have a slice; None without calls."""
        return self.num_linked / self.num_calls if self.num_calls else None


def is_call(table: NodeTable) -> Any:
    """True for nodes that are calls, not a process, a thread or a list of groups."""
    wanted = [not name.startswith(ROOTS) and PROCESS_GROUPS not in name for name in table.names]
    return np.array(wanted or [False], bool)[table.name] if len(table.name) else np.empty(0, bool)


def linked(table: NodeTable, timeline: RankTimeline | None) -> Links:
    """Joins nodes and slices by the number of the call, or by name and order where slices have no such number."""
    calls = is_call(table)
    found = np.full(len(table.id), -1, np.int64)
    if timeline is None:
        return Links(slice=found, linked_by=None, num_calls=int(np.count_nonzero(calls)))
    nodes = np.flatnonzero(calls)
    slices = np.flatnonzero((timeline.type == OPERATOR) | (timeline.type == ANNOTATION))
    names = {name: number for number, name in enumerate(timeline.names)}
    name_of = np.array([names.get(name, -1) for name in table.names] or [-1], np.int64)[table.name[nodes]]
    function = timeline.more[FUNCTION]
    numbered = bool(np.any((function[slices] != NONE) & (function[slices] > 0)))
    if numbered:
        ours, theirs = _by_number(table.function[nodes], function[slices])
    else:
        ours, theirs = _in_order(_order(table.function[nodes], table.id[nodes]), name_of,
                                 _order(timeline.external[slices], timeline.start_ns[slices]), timeline.name[slices])
    same = name_of[ours] == timeline.name[slices[theirs]]
    found[nodes[ours[same]]] = slices[theirs[same]]
    return Links(slice=found, linked_by="id" if numbered else "order", num_calls=len(nodes))


def _by_number(node: Any, slice_: Any) -> tuple[Any, Any]:
    """Pairs of places with equal numbers; a number that comes twice on a side joins nothing."""
    sides = []
    for numbers in (node, slice_):
        values, first, count = np.unique(numbers, return_index=True, return_counts=True)
        once = (count == 1) & (values > 0)
        sides.append((values[once], first[once]))
    _, ours, theirs = np.intersect1d(sides[0][0], sides[1][0], assume_unique=True, return_indices=True)
    return sides[0][1][ours], sides[1][1][theirs]


def _order(number: Any, otherwise: Any) -> Any:
    """Places by number where each has one of its own, as calls are numbered when they begin."""
    usable = len(np.unique(number)) == len(number) and not np.any((number == NONE) | (number <= 0))
    return np.argsort(number if usable else otherwise, kind="stable")


def _in_order(ours: Any, our_names: Any, theirs: Any, their_names: Any) -> tuple[Any, Any]:
    one, other = align(our_names[ours].astype(np.int64), their_names[theirs].astype(np.int64))
    return ours[one], theirs[other]
