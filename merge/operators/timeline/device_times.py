"""Finds the host slice that launched each kernel, copy and fill of a device.

Separate from the slices themselves because it needs polars, which reading a timeline does without.
"""

from __future__ import annotations

import numpy as np

from distprof.arrays import Integers
from distprof.merge.activity.device.commands import OF_ONE_KERNEL, of_names, of_single_kernels
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, OPERATOR, RUNTIME, RankTimeline
from distprof.merge.scan.scanned_columns import NONE


def launchers(timeline: RankTimeline, nesting: Nesting) -> Integers:
    """Returns the row of the operator that launched each slice of a device; -1 for others, and if unknown.

    A kernel has the correlation id of the call that launched it, which lies in an operator; if it lies in none, the
    call itself counts. If the trace has no such call, the profiler's external id joins kernel and operator.
    """
    found = np.full(len(timeline.name), -1, np.int64)
    on_device = np.flatnonzero(timeline.type >= NUM_HOST)
    calls = np.flatnonzero(timeline.type == RUNTIME)
    launch = launches(timeline, on_device, calls)
    around = np.where(launch >= 0, operator_around(timeline, nesting)[launch], -1)
    operators = np.flatnonzero(timeline.type == OPERATOR)
    by_id = joined(timeline.external, on_device, operators)
    found[on_device] = np.where(around >= 0, around, np.where(by_id >= 0, by_id, launch))
    return found


def operator_around(timeline: RankTimeline, nesting: Nesting) -> Integers:
    """Returns the row of the innermost operator that each slice is or lies in; -1 for none."""
    found = np.where(timeline.type == OPERATOR, np.arange(len(timeline.type)), -1)
    for rows, parents in nesting.downwards():
        found[rows] = np.where((found[rows] < 0) & (parents >= 0), found[parents], found[rows])
    return found


def launches(timeline: RankTimeline, on_device: Integers, calls: Integers) -> Integers:
    """Returns the row of the call that launched each of these slices of a device; -1 if unknown."""
    single = of_names(OF_ONE_KERNEL, timeline.names)[timeline.name]
    return of_single_kernels(joined(timeline.correlation, on_device, calls), np.append(single, False))


def joined(key: Integers, rows: Integers, others: Integers) -> Integers:
    """Returns the row among the others that has the key of each row, the last one of several; -1 if there is none, and
    for key 0, which is not an id."""
    if not len(others):
        return np.full(len(rows), -1, np.int64)
    order = others[np.argsort(key[others], kind="stable")]
    place = np.searchsorted(key[order], key[rows], "right") - 1
    hit = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (key[hit] == key[rows]) & (key[rows] != NONE) & (key[rows] != 0), hit, -1)
