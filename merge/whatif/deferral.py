"""Deferred waits: ranks wait for a collective only when they first use its tensors.

The execution trace shows these uses in one step. Other steps have the same uses if they issue the same collectives
and call the same operators in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.contract.collective_ops import COLLECTIVE_OPS
from distprof.merge.execution.dependencies.first_uses import UNKNOWN, UNUSED, FirstUses
from distprof.merge.match.sequence_alignment import align
from distprof.merge.program.job import Job
from distprof.merge.program.run_program import RunProgram
from distprof.merge.replay.graph import CALL, WAIT, Graph
from distprof.merge.replay.moved_waits import Later, work_between

ALIKE = 0.9
"""Smallest share of the operators of a step that must be in the execution trace, and vice versa."""
SHORT_NS = 100_000
"""Shortest time by which a wait is moved: to resume takes a thread some time anyway."""
Move = tuple[int, int, str | None]
"""The event of a wait, its new time in ns, and the operator there; None at the end of the step."""
SCHEMA = {"step": pl.Int64(), "rank": pl.Int64(), "collective_op": pl.String(), "until": pl.String(),
          "later_ns": pl.Float64()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """The waits that move, and those that do not."""

    later: Later
    moved: pl.DataFrame
    """`SCHEMA`, one row per wait: `until` is the operator that first uses the communicated tensors, null if none does
    in the step; `later_ns` is the work in between."""
    num_waits: int
    """Number of all waits in the steps."""
    num_unknown: int
    """Number of waits that stay because the first use of their tensors is unknown."""
    unlike: Sequence[tuple[int, int]]
    """Pairs (step, rank) in which the step differs from the execution trace of the rank."""
    kept: Sequence[int]
    """Ranks whose waits all stay: without an execution trace or a timeline, or with waits on their device."""


def deferral(program: RunProgram, job: Job, graph: Graph, uses: Mapping[int, FirstUses],
             steps: Sequence[int]) -> Deferral:
    """Finds the waits that can be deferred.

    Args:
        program: What ranks did.
        job: The graph of the run.
        graph: The same graph without joins that cannot be replayed.
        uses: First uses of tensors, for the ranks that have an execution trace.
        steps: Steps whose waits are deferred.
    """
    rows = program.rows.select("collective", "rank", pl.col("op").cast(pl.String))
    op_of = {(collective, rank): op for collective, rank, op in rows.iter_rows()}  # a message has two: send and recv
    found, unlike, num_waits, num_unknown = list[Move](), list[tuple[int, int]](), 0, 0
    kept = [rank for rank in job.ranks.tolist() if rank not in uses or rank not in program.did
            or program.did[rank].on_device]
    for index, step, begin, end in job.steps[np.isin(job.steps[:, 1], steps)].tolist():
        rank = int(job.ranks[index])
        calls, waits = (np.arange(begin, end + 1)[graph.events.kind[begin:end + 1] == kind] for kind in (CALL, WAIT))
        num_waits += len(waits)
        if rank not in kept:
            parts, at = graph.events.part[calls], graph.events.at_ns + job.ahead_ns[index]
            ops = [op_of[collective, rank] for collective in job.collective[parts].tolist()]
            until = _until(program.timelines[rank], uses[rank], ops, (int(at[begin]), int(at[end])))
            if until is None:
                unlike.append((step, rank))
            else:
                of_part = dict(zip(parts.tolist(), until, strict=True))
                found += _moves(graph, waits, of_part, int(job.ahead_ns[index]))
                num_unknown += _num_unknown(graph.events.part[waits].tolist(), of_part,
                                            dict(zip(parts.tolist(), ops, strict=True)))
    later, moved = _worthwhile(job, graph, op_of, found)
    return Deferral(later=later, moved=moved, num_waits=num_waits, num_unknown=num_unknown, unlike=unlike, kept=kept)


def _num_unknown(waited: Sequence[int], until: Mapping[int, tuple[int, str | None]], op_of: Mapping[int, str]) -> int:
    """Returns how many waits stay because a first use is unknown; without those for barriers, which have no tensors."""
    without = [name for name, one in COLLECTIVE_OPS.items() if not one.has_data]
    return sum(not until.get(part, (0, None))[0] and op_of.get(part) not in without for part in waited)


def _moves(graph: Graph, waits: Integers, until: Mapping[int, tuple[int, str | None]], ahead_ns: int) -> Iterator[Move]:
    """Yields the waits of a step whose tensors are first used later, by the clock of the graph."""
    for wait, part in zip(waits.tolist(), graph.events.part[waits].tolist(), strict=True):
        at_ns, name = until.get(part, (0, None))
        if at_ns - ahead_ns > graph.events.at_ns[wait]:
            yield wait, at_ns - ahead_ns, name


def _worthwhile(job: Job, graph: Graph, op_of: Mapping[tuple[int, int], str],
                found: Sequence[Move]) -> tuple[Later, pl.DataFrame]:
    """Returns the waits with at least `SHORT_NS` of work before their new place, and a table of them."""
    event, until = (np.array([one[side] for one in found], np.int64) for side in (0, 1))
    work = work_between(graph, Later(event=event, until_ns=until))
    some = np.flatnonzero(work >= SHORT_NS)
    event, until = event[some], until[some]
    collective, rank = job.collective[graph.events.part[event]], job.ranks[graph.events.rank[event]]
    ops = [op_of[one] for one in zip(collective.tolist(), rank.tolist(), strict=True)]
    moved = pl.DataFrame({
        "step": job.step[event], "rank": rank, "collective_op": ops,
        "until": [found[row][2] for row in some.tolist()],
        "later_ns": work[some].astype(float)}, SCHEMA)
    return Later(event=event, until_ns=until), moved


def _until(slices: pl.DataFrame, uses: FirstUses, ops: Sequence[str],
           window: tuple[int, int]) -> list[tuple[int, str | None]] | None:
    """Returns when the tensors of each collective of a step are first used, and by which operator; 0 if unknown.

    Returns None if the step differs from the execution trace.
    """
    start = pl.col("start_ns")
    mine = slices.filter(pl.col("category").str.to_lowercase() == "cpu_op", start >= window[0], start < window[1])
    mine = mine.sort("start_ns", "duration_ns", descending=[False, True])
    names = mine["name"].to_list()
    code = {name: number for number, name in enumerate(dict.fromkeys((*uses.calls, *names)))}
    theirs, ours = align(*(np.array([code[name] for name in one], np.int64) for one in (uses.calls, names)))
    if list(ops) != uses.ops or len(ours) < ALIKE * max(len(names), len(uses.calls)):
        return None
    at = dict(zip(theirs.tolist(), mine["start_ns"].gather(ours).to_list(), strict=True))
    return list(_times(uses, at, window[1]))


def _times(uses: FirstUses, at: Mapping[int, int], end_ns: int) -> Iterator[tuple[int, str | None]]:
    for call in uses.call.tolist():
        if call == UNUSED:
            yield end_ns, None
        else:
            yield (0, None) if call == UNKNOWN else (at.get(call, 0), uses.calls[call])

