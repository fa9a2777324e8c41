"""Peers: ranks that ran the same program, so that they can be compared; and which ranks meet at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from distprof.arrays import Integers
from distprof.merge.activity.activities import OF_MODULES, Activity
from distprof.merge.program.job import Job
from distprof.merge.replay.graph import CALL

ALIKE = 0.5
"""Two ranks are peers only if the Jaccard index of the sets of modules that they ran is at least this."""


def peers_of(job: Job, steps: Sequence[int], known: Sequence[Activity],
             coordinates: Mapping[int, Mapping[str, int]]) -> list[Integers]:
    """Groups ranks that called the same ops in the same order, in groups of equal sizes, and ran mostly equal modules.

    Ranks of different pipeline stages are not peers; neither are ranks that send messages if their stage and modules
    are unknown.

    Args:
        job: What ranks did.
        steps: Steps that count.
        known: Activities by number.
        coordinates: Coordinates of ranks in the device mesh, where known.

    Returns:
        Indices of ranks, ascending; one array per set of peers. A rank with a program of its own joins ranks that run
        mostly the same modules.
    """
    modules = _modules(job, known)
    stages = {rank: dict(coordinates.get(number) or {}).get("pp") for rank, number in enumerate(job.ranks.tolist())}
    programs: dict[Any, list[list[int]]] = defaultdict(list)
    unclear = {rank for rank in _that_send(job) - set(modules) if stages[rank] is None}
    for rank, program in enumerate(_programs(job, steps)):
        alike = programs[program, stages[rank], rank if rank in unclear else None]
        mine = modules.get(rank, set())
        peers = next((one for one in alike if _share(mine, modules.get(one[0], set())) >= ALIKE), None)
        if peers is None:
            alike.append([rank])
        else:
            peers.append(rank)
    groups = sorted((peers for alike in programs.values() for peers in alike), key=lambda peers: -len(peers))
    found: list[list[int]] = []
    for peers in groups:
        near = next((others for others in found if len(peers) == 1 and stages[others[0]] == stages[peers[0]] and _share(
            modules.get(peers[0], {""}), modules.get(others[0], set())) >= ALIKE), None)
        if near is None:
            found.append(peers)
        else:
            near += peers
    return [np.array(sorted(peers)) for peers in found]


def _programs(job: Job, steps: Sequence[int]) -> list[bytes]:
    events = job.graph.events
    chosen = np.flatnonzero((events.kind == CALL) & np.isin(job.step, steps))
    code = np.stack((job.step[chosen], job.op[events.part[chosen]]), axis=1)
    bounds = np.searchsorted(events.rank[chosen], np.arange(len(job.ranks) + 1))
    return [code[first:stop].tobytes() for first, stop in pairwise(bounds.tolist())]


def _that_send(job: Job) -> set[int]:
    events = job.graph.events
    calls = np.flatnonzero(events.kind == CALL)
    return set(np.unique(events.rank[calls[job.op[events.part[calls]] < 0]]).tolist())


def _modules(job: Job, known: Sequence[Activity]) -> dict[int, set[str]]:
    of_modules = np.array([one.kind in OF_MODULES and one.where is not None for one in known], bool)
    held = of_modules[job.pieces.label]
    pairs = np.unique(np.stack((job.graph.events.rank[job.pieces.event[held]], job.pieces.label[held])), axis=1)
    found: dict[int, set[str]] = defaultdict(set)
    for rank, label in pairs.T.tolist():
        found[rank].add(known[label].where or "")
    return found


def _share(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 1.0


def components(job: Job) -> Integers:
    """Returns the connected components of ranks that meet: a number per rank, equal for ranks of the same component."""
    events = job.graph.events
    calls = np.flatnonzero(events.kind == CALL)
    return lowest_met(job.collective[events.part[calls]], events.rank[calls], len(job.ranks))


def lowest_met(meeting: Integers, rank: Integers, num_ranks: int) -> Integers:
    """Returns the lowest rank that each rank meets, directly or through others: connected components by label
    propagation.

    Args:
        meeting: Number of the meeting of each pair of a meeting and a rank in it.
        rank: Index of the rank of each pair.
        num_ranks: Number of ranks.
    """
    lowest, before = np.arange(num_ranks), None
    while before is None or (lowest != before).any():
        before = lowest.copy()
        of_meeting = np.full(int(meeting.max(initial=-1)) + 1, num_ranks)
        np.minimum.at(of_meeting, meeting, lowest[rank])
        np.minimum.at(lowest, rank, of_meeting[meeting])
    return lowest
