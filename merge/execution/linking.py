"""Finds the slice in the timeline for each node of an execution trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from distprof.arrays import Array, Flags, Integers
from distprof.merge.execution.node_table import NodeTable
from distprof.merge.match.sequence_alignment import align
from distprof.merge.operators.timeline.rank_timeline import ANNOTATION, OPERATOR, RankTimeline
from distprof.merge.scan.scanned_columns import NONE

ROOTS = ("[pytorch|profiler|execution_trace|", "[pytorch|profiler|execution_graph|")
"""Prefixes of the names of nodes that stand for a process or a thread."""
FUNCTION = "Record function id"
"""Key of `args` of slices: the id of the call, which nodes have as `rf_id`."""
STREAM = "stream"
"""Key of `args` of kernels: the stream."""
PROCESS_GROUPS = "process_group:init"
"""Substring of the name of a node that lists the process groups."""


LEAST = 0.9
"""Fraction of the compared calls that must be the same; below it, the files are of different processes. Measured on 22
execution traces and 24 timelines, our own of torch 2.13 and public ones of older versions: in the 19 pairs of one
process, all calls with equal ids had equal names, and by names and order at least 0.993 agreed. Of programs with
different networks at most 0.07 agreed by id and 0.87 by order; of ranks of one job that make different calls, 0.51 by
id. Two runs of one program may agree completely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of an execution trace, or slices of a timeline, for comparison with the other."""

    row: Integers
    """Row in the table of the file."""
    number: Integers
    """Id of the call; 0 or less for none."""
    label: Integers
    """Number of the name, the same in all files that are compared."""
    order: Integers
    """Indices in order of start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Which slice belongs to which node."""

    slice: Integers
    """Row of the timeline for each node; -1 for none."""
    linked_by: Literal["id", "order"] | None
    """`order`: the files share no ids, so that calls are aligned by name and order; None: there is no timeline."""
    num_calls: int
    """Number of nodes that are calls, which should have a slice."""
    num_compared: int = 0
    """Calls whose id is in both files; without ids, the calls of the file that has fewer."""

    @property
    def num_linked(self) -> int:
        return int(np.count_nonzero(self.slice >= 0))

    @property
    def ratio(self) -> float | None:
        """Fraction of the calls that have a slice; None without calls."""
        return self.num_linked / self.num_calls if self.num_calls else None

    @property
    def agreement(self) -> float | None:
        """Fraction of the compared calls that are the same on both sides; None if nothing could be compared."""
        return self.num_linked / self.num_compared if self.num_compared else None


def is_call(table: NodeTable) -> Flags:
    """Returns True for nodes that are calls, not a process, a thread or a list of groups."""
    wanted = [not name.startswith(ROOTS) and PROCESS_GROUPS not in name for name in table.names]
    return np.array(wanted or [False], bool)[table.name] if len(table.name) else np.empty(0, bool)


def calls_of_table(table: NodeTable, labels: dict[str, int]) -> Calls:
    """Returns the calls of an execution trace; adds their names to `labels`."""
    rows = np.flatnonzero(is_call(table))
    number = table.function[rows]
    return Calls(row=rows, number=number, label=_labels(table.names, labels)[table.name[rows]],
                 order=_order(number, table.id[rows]))


def calls_of_timeline(timeline: RankTimeline, labels: dict[str, int]) -> Calls:
    """Returns the slices of a timeline that may be calls of an execution trace; adds their names to `labels`."""
    rows = np.flatnonzero((timeline.type == OPERATOR) | (timeline.type == ANNOTATION))
    function = timeline.more[FUNCTION][rows]
    return Calls(row=rows, number=np.where(function == NONE, 0, function),
                 label=_labels(timeline.names, labels)[timeline.name[rows]],
                 order=np.argsort(timeline.start_ns[rows], kind="stable"))


def _labels(names: Sequence[str], labels: dict[str, int]) -> Integers:
    return np.array([labels.setdefault(name, len(labels)) for name in names] or [-1], np.int64)


def linked(table: NodeTable, timeline: RankTimeline | None) -> Links:
    """Joins nodes and slices by the id of the call, or by name and order if they have no id in common."""
    found, labels = np.full(len(table.id), -1, np.int64), dict[str, int]()
    ours = calls_of_table(table, labels)
    if timeline is None:
        return Links(slice=found, linked_by=None, num_calls=len(ours.row))
    theirs = calls_of_timeline(timeline, labels)
    one, other, num_compared, by = joined(ours, theirs)
    found[ours.row[one]] = theirs.row[other]
    return Links(slice=found, linked_by=by, num_calls=len(ours.row), num_compared=num_compared)


def joined(ours: Calls, theirs: Calls) -> tuple[Integers, Integers, int, Literal["id", "order"]]:
    """Returns the indices of the same calls on both sides, how many calls were compared, and by what."""
    one, other = _by_number(ours.number, theirs.number)
    if len(one):
        same = ours.label[one] == theirs.label[other]
        return one[same], other[same], len(one), "id"
    one, other = align(ours.label[ours.order], theirs.label[theirs.order])
    return ours.order[one], theirs.order[other], min(len(ours.row), len(theirs.row)), "order"


def _by_number(node: Integers, slice_: Integers) -> tuple[Integers, Integers]:
    """Returns the indices with equal ids on both sides; an id that occurs twice on a side joins nothing."""
    sides = []
    for numbers in (node, slice_):
        values, first, count = np.unique(numbers, return_index=True, return_counts=True)
        once = (count == 1) & (values > 0)
        sides.append((values[once], first[once]))
    _, ours, theirs = np.intersect1d(sides[0][0], sides[1][0], assume_unique=True, return_indices=True)
    return sides[0][1][ours], sides[1][1][theirs]


def _order(number: Integers, otherwise: Array) -> Integers:
    """Returns the indices sorted by id, which calls get when they begin, or by `otherwise` if ids are not unique."""
    usable = len(np.unique(number)) == len(number) and not np.any((number == NONE) | (number <= 0))
    return np.argsort(number if usable else otherwise, kind="stable")
