"""Builds the graph of a simulated job as a perfect recorder would see it."""

from __future__ import annotations

import numpy as np

from distprof.merge.replay.graph import CALL, MARK, WAIT, Events, Graph, Parts, linked
from support.simulator.engine import Simulation


def graph_of(job: Simulation) -> Graph:
    """Returns the graph with calls, waits and marks: a rank's first mark is its start, others are ends of steps."""
    rows, parts, queues, joins = [], [], {}, {}
    for rank in range(len(job.programs)):
        rows.append((rank, MARK, -1, 0, 0))
        for moved in job.moved[rank]:
            number = len(parts)
            # a rank that reads from the root does not wait for others, only for the root to begin
            join = moved.call.key if moved.call.meets else (*moved.call.key, rank)
            parts.append((queues.setdefault((rank, moved.call.group), len(queues)),
                          joins.setdefault(join, len(joins)), moved.began_ns, moved.ended_ns))
            rows.append((rank, CALL, number, moved.called_ns, moved.called_ns))
            if moved.wait_start_ns >= 0:
                rows.append((rank, WAIT, number, moved.wait_start_ns, moved.wait_end_ns))
        rows += [(rank, MARK, -1, end, end) for end in job.step_ends(rank)]
    # a wait that took time comes before other events at its end
    order = sorted(range(len(rows)), key=lambda one: (rows[one][0], rows[one][4], not (
        rows[one][1] == WAIT and rows[one][3] < rows[one][4]), rows[one][1]))
    rank, kind, part, began, at = np.array([rows[one] for one in order], np.int64).T
    queue, join, start, end = np.array(parts, np.int64).reshape(-1, 4).T
    events = Events(rank=rank, kind=kind, part=part, began_ns=began, at_ns=at)
    found = Parts(queue=queue, join=join, root=np.full(len(queue), -1), start_ns=start, end_ns=end, op=join,
                  noted_late=np.zeros(len(queue), bool))
    return linked(events, found, _leads(job, joins))


def _leads(job: Simulation, joins: dict[tuple[object, ...], int]) -> np.ndarray:
    """Returns pairs: join of a reader, part of its root."""
    calls = [moved for mine in job.moved for moved in mine]
    roots = {moved.call.key: number for number, moved in enumerate(calls) if moved.rank == moved.call.root}
    pairs = [(joins[*moved.call.key, moved.rank], roots[moved.call.key]) for moved in calls
             if not moved.call.meets and moved.rank != moved.call.root]
    return np.array(sorted(pairs), np.int64).reshape(-1, 2)
