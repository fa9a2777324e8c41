"""FLOPs and bytes of what ran, from the shapes in the timeline."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.operators.timeline.grouped_calls import slice_costs
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST


def work_of(graph: RankGraph) -> Mapping[int, tuple[int, int | None]]:
    """FLOPs and bytes by place, bytes None where they are not known.

    Work of an operator that launched a single kernel is that of the kernel.
    """
    timeline = graph.timeline
    if timeline is None:
        return {}
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
    costs = slice_costs(timeline, nesting)
    if costs is None:
        return {}
    kernels = _only_kernels(graph)
    found = dict[int, tuple[int, int | None]]()
    for place in np.flatnonzero((graph.slice >= 0) & ~graph.on_device).tolist():
        row = int(graph.slice[place])
        flops, num_bytes = int(costs.flops[row]), int(costs.num_bytes[row])
        if flops >= 0 and (flops or num_bytes > 0):
            found[kernels.get(place, place)] = flops, num_bytes if num_bytes >= 0 else None
    return found


def _only_kernels(graph: RankGraph) -> dict[int, int]:
    """The kernel of each call in which, with all that lies in it, a single one was launched."""
    count, last = np.zeros(len(graph.name), np.int64), np.full(len(graph.name), -1, np.int64)
    count[graph.on_device], last[graph.on_device] = 1, np.flatnonzero(graph.on_device)
    for place in range(len(graph.name) - 1, -1, -1):
        above = graph.parent[place]
        if above >= 0 and count[place]:
            count[above] += count[place]
            last[above] = last[place]
    return {place: int(last[place]) for place in np.flatnonzero((count == 1) & ~graph.on_device).tolist()}
