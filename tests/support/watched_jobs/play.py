"""The job, step by step: who arrives when, and when calls end."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from .job import Job, work

BUCKETS = 3
IN_BACKWARD = np.arange(1, BUCKETS + 1) / BUCKETS
LAYERS = 3
MICRO = 4
GOLDEN = (5 ** 0.5 - 1) / 2
Call = tuple[str, str, float, float, float]
"""Group, operation, arrival, duration and how long the thread stood still."""


@dataclass(slots=True, kw_only=True)
class Played:
    """What happened. Arrays have a row for each step and a column for each rank."""

    job: Job
    end_ns: Any
    """Since the begin of the job."""
    phases_ns: Any
    """With a third axis."""
    calls: dict[int, list[list[Call]]] = field(default_factory=dict)
    """Of each sampled step and rank."""
    groups: dict[str, list[int]] = field(default_factory=dict)


def sampled(job: Job) -> Any:
    """The steps whose calls are noted."""
    fine = max(3, round(float(np.log2(max(1.28e9 / job.step_ns, 1)))))
    steps = np.arange(job.num_steps)
    return np.flatnonzero((steps * GOLDEN) % 1 < 2.0 ** -fine)


def play(job: Job) -> Played:
    """All steps."""
    of, draw = work(job), np.random.default_rng(job.seed + 1)
    moving = 0.05 * job.step_ns * np.exp(draw.normal(0, max(job.jitter, 1e-12), (job.num_steps, 16)))
    played = Played(job=job, end_ns=np.empty(of.shape[:2]), phases_ns=np.empty(of.shape), groups=groups_of(job))
    noted, now = set(sampled(job).tolist()), np.zeros(job.world)
    step_of = {"dp": _data_parallel, "tp": _tensor_parallel, "pp": _pipeline}[job.layout]
    for step in range(job.num_steps):
        calls: list[list[Call]] | None = [[] for _ in range(job.world)] if step in noted else None
        slower = {name: sum(one.extra_ns for one in job.links if step >= one.onset and set(one.hosts) <= {
            job.host(rank) for rank in ranks}) for name, ranks in played.groups.items()} if job.links else {}
        phases = step_of(job, of[step], moving[step], now, calls, slower, played.groups)
        now = now + phases.sum(axis=1)
        played.end_ns[step], played.phases_ns[step] = now, phases
        if calls is not None:
            played.calls[step] = calls
    return played


def groups_of(job: Job) -> dict[str, list[int]]:
    """Process groups of the layout."""
    every = list(range(job.world))
    if job.world == 1:
        return {}
    if job.layout == "dp":
        return {"default": every}
    if job.layout == "tp":
        return {**{f"tp{rank}": [rank, rank + 1] for rank in every[::2]}, "dp0": every[::2], "dp1": every[1::2]}
    return {f"pair{before}": [before, after] for before, after in pairwise(every)}


def _meet(calls: Any, group: str, op: str, ranks: list[int], now: Any, move: float, begin: Any) -> None:
    """A call in which all stand still until the last is there and the data have moved; `now` becomes its end."""
    arrived = now[ranks]
    end = float(arrived.max()) + move
    if calls is not None:
        for rank, when in zip(ranks, arrived.tolist(), strict=True):
            calls[rank].append((group, op, when - begin[rank], end - when, end - when))
    now[ranks] = end


def _data_parallel(job: Job, of: Any, moving: Any, begin: Any, calls: Any, slower: Any, groups: Any) -> Any:
    """Buckets of gradients are reduced one after the other while backward goes on; all wait for the last."""
    if not groups:
        return of
    done = begin + of[:, 0] + of[:, 1] + np.outer(IN_BACKWARD, of[:, 2])
    over, ends = 0.0, []
    for bucket, last in enumerate(done.max(axis=1).tolist()):
        over = max(over, last) + moving[bucket] / BUCKETS + slower.get("default", 0.0)
        ends.append(over)
    still = np.maximum(over - done[-1], 0)
    for rank in range(job.world) if calls is not None else ():
        for bucket in range(BUCKETS):
            blocked = float(still[rank]) if bucket == BUCKETS - 1 else 0.0
            when = float(done[bucket, rank])
            calls[rank].append(("default", "all_reduce", when - begin[rank], ends[bucket] - when, blocked))
    phases = of.copy()
    phases[:, 2] += still
    return phases


def _tensor_parallel(job: Job, of: Any, moving: Any, begin: Any, calls: Any, slower: Any, groups: Any) -> Any:
    now, phases = begin + of[:, 0], of.copy()
    for phase in (1, 2):
        before = now.copy()
        for layer in range(LAYERS):
            now = now + of[:, phase] / LAYERS
            for name, ranks in groups.items():
                if name.startswith("tp"):
                    move = float(moving[layer]) / 20 + slower.get(name, 0.0)
                    _meet(calls, name, "all_reduce", ranks, now, move, begin)
        phases[:, phase] = now - before
    before = now.copy()
    for name in ("dp0", "dp1"):
        _meet(calls, name, "all_reduce", groups[name], now, float(moving[8]) + slower.get(name, 0.0), begin)
    phases[:, 2] += now - before
    return phases


def _pipeline(job: Job, of: Any, moving: Any, begin: Any, calls: Any, slower: Any, groups: Any) -> Any:
    now, phases, move = begin + of[:, 0], of.copy(), float(moving[0]) / 20
    for phase in (1, 2):
        before = now.copy()
        stages = list(range(job.world)) if phase == 1 else list(reversed(range(job.world)))
        noted: list[list[tuple[Any, ...]]] = [[] for _ in range(job.world)]
        sent = np.zeros((job.world, MICRO))
        for place, stage in enumerate(stages):
            for micro in range(MICRO):
                if place:
                    source = stages[place - 1]
                    pair = f"pair{min(source, stage)}"
                    end = max(now[stage], sent[source, micro] + move + slower.get(pair, 0.0))
                    noted[stage].append((pair, "recv", now[stage] - begin[stage], end - now[stage], end - now[stage]))
                    now[stage] = end
                now[stage] += of[stage, phase] / MICRO
                if place < job.world - 1:
                    sent[stage, micro] = now[stage]
                    pair = f"pair{min(stage, stages[place + 1])}"
                    moved = move + slower.get(pair, 0.0)
                    noted[stage].append((pair, "send", now[stage] - begin[stage], moved, 0.0))
        phases[:, phase] = now - before
        if calls is not None:
            for stage in range(job.world):
                calls[stage] += noted[stage]
    return phases
