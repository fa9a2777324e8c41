"""Changed durations of work and collectives.

For work: how much of the work in front of each event of a rank matches a scale. For collectives: transfers that take
no time, or less time with more bandwidth.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from distprof.arrays import Array, Flags, Floats, Integers
from distprof.errors import DataError, UsageError
from distprof.merge.activity.activities import Activity
from distprof.merge.activity.intervals import NOTHING, Intervals
from distprof.merge.program.job import Job, work_of
from distprof.merge.program.run_program import RunProgram
from distprof.merge.replay.graph import CALL, Graph
from distprof.merge.whatif.changes import Scale
from distprof.units import spans

LISTED = 8
"""Most names that an error message lists."""


def scaled(program: RunProgram, job: Job, scales: Sequence[Scale], steps: Sequence[int]) -> Integers:
    """Returns how much of the work in front of each event matches each scale, in ns; shape (scales, events).

    Args:
        program: What ranks did.
        job: The graph of the run.
        scales: The scales; work that matches several belongs to the first.
        steps: Steps in which work is scaled.

    Raises:
        UsageError: There is no such rank, step, module, phase or operator, or no work meets all conditions.
    """
    for scale in scales:
        _check(program, job, scale, steps)
    events, work = job.graph.events, work_of(job.graph)
    found = np.zeros((len(scales), len(events)), np.int64)
    for index, rank in enumerate(job.ranks.tolist()):
        first, stop = np.searchsorted(events.rank, (index, index + 1))
        at = events.at_ns[first:stop] + job.ahead_ns[index]
        starts = np.concatenate((at[:1], at[:-1]))
        taken, step = NOTHING, job.step[first:stop]
        for number, scale in enumerate(scales):
            if not within(scale.rank, rank):
                continue
            inside = np.isin(step, steps) & all_within(scale.step, step)
            ends = np.where(inside, starts + work[first:stop], starts)
            mine = Intervals.of(starts, ends)
            if scale.needs_timeline:
                mine = mine & _meant(program, rank, scale)
            mine = mine - taken
            taken = taken | mine
            found[number, first:stop] = mine.within(starts, ends)
    for scale, ns in zip(scales, found, strict=True):
        if not ns.any():
            raise UsageError(f"--scale {scale.text!r} matches no work in steps {spans(sorted(steps))}")
    return found


def _meant(program: RunProgram, rank: int, scale: Scale) -> Intervals:
    """Returns the times at which a rank did matching work."""
    did = program.did.get(rank)
    if did is None:
        return NOTHING
    found = did.lane.intervals(labels_of(scale, program.activities.known))
    if scale.op is None:
        return found
    events = _operators(program, rank)
    named = events.filter(pl.col("name").is_in(fitting(scale.op, events["name"].unique().to_list())))
    starts = named["start_ns"].to_numpy()
    inside = Intervals.of(starts, starts + named["duration_ns"].to_numpy())
    return inside if scale.phase is None and scale.module is None else found & inside


def labels_of(scale: Scale, known: Sequence[Activity]) -> list[int]:
    """Returns the indices of the activities whose phase and module match."""
    return [label for label, one in enumerate(known) if (scale.phase is None or one.kind == scale.phase) and (
        scale.module is None or (one.where is not None and one.kind != "host" and is_in(one.where, scale.module)))]


def _operators(program: RunProgram, rank: int) -> pl.DataFrame:
    """Returns the slices of a rank's operators; of its kernels, if its activity is that of its device."""
    category = "kernel" if program.did[rank].on_device else "cpu_op"
    return program.timelines[rank].filter(pl.col("category").str.to_lowercase() == category)


def is_in(path: str, pattern: str) -> bool:
    """Returns whether a module, or one that contains it, matches a pattern of paths."""
    parts = path.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:number]), pattern) for number in range(1, len(parts) + 1))


def fitting(pattern: str, names: Iterable[str]) -> list[str]:
    """Returns the names that match a pattern."""
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def within(span: tuple[int, int] | None, number: int) -> bool:
    """Returns whether a number is within a range, ends included; None is all numbers."""
    return span is None or span[0] <= number <= span[1]


def all_within(span: tuple[int, int] | None, numbers: Integers) -> Flags:
    """Returns for each number whether it is within a range, ends included; None is all numbers."""
    return np.ones(len(numbers), bool) if span is None else (numbers >= span[0]) & (numbers <= span[1])


def _check(program: RunProgram, job: Job, scale: Scale, steps: Sequence[int]) -> None:
    if scale.needs_timeline and not any(within(scale.rank, rank) for rank in program.did):
        check_scale(scale, job.ranks.tolist(), steps, (), list)
        raise UsageError(f"--scale {scale.text!r} needs ranks with a timeline, and no such rank has one",
                         hint="--steps trace=6 records one on all ranks; rank and step can be scaled without")
    check_scale(scale, job.ranks.tolist(), steps, program.activities.known,
                lambda: [name for rank in program.did for name in _operators(program, rank)["name"].unique().to_list()])


def check_scale(scale: Scale, ranks: Sequence[int], steps: Sequence[int], known: Sequence[Activity],
                names: Callable[[], Sequence[str]]) -> None:
    """Checks that the conditions of a scale exist.

    Args:
        scale: The scale.
        ranks: Existing ranks.
        steps: Steps that are predicted.
        known: Activities of ranks; if empty, phase, module and operator are not checked.
        names: Returns the names of operators.

    Raises:
        UsageError: There is no such rank, step, module, phase or operator.
    """
    for key, span, there in (("rank", scale.rank, ranks), ("step", scale.step, sorted(steps))):
        if span is not None and (span[0] not in there or span[1] not in there):
            asked = span[0] if span[0] == span[1] else f"{span[0]}-{span[1]}"
            raise UsageError(f"unknown {key} {asked} in --scale", hint=f"choose from {spans(there)}")
    if not known:
        return
    kinds = sorted({one.kind for one in known})
    if scale.phase is not None and scale.phase not in kinds:
        raise UsageError(f"unknown phase {scale.phase!r} in --scale", hint=f"choose from {', '.join(kinds)}")
    modules = sorted({one.where for one in known if one.where and one.kind != "host"})
    if scale.module is not None and not any(is_in(path, scale.module) for path in modules):
        raise _unknown("module", scale.module, modules)
    if scale.op is not None:
        named = sorted(set(names()))
        if not fitting(scale.op, named):
            raise _unknown("op", scale.op, named)


def _unknown(key: str, value: str, there: Sequence[str]) -> UsageError:
    near = difflib.get_close_matches(value, there, n=1)
    more = f" and {len(there) - LISTED} more" if len(there) > LISTED else ""
    listed = f"choose from {', '.join(there[:LISTED])}{more}" if there else f"timelines show no {key}s"
    return UsageError(f"unknown {key} {value!r} in --scale",
                      hint=f"did you mean {key}={near[0]}?" if near else listed)


APART = 2.0
"""Smallest ratio of the largest to the smallest size from which the growth of transfers with size is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """How much of the transfer time of an op, in groups of one size, grows with the bytes."""

    op: str
    num_ranks: int
    ratio: float | None
    """Share of the transfer time; None if it is unknown, as sizes hardly differ. All of the time then counts."""


def free(graph: Graph) -> Graph:
    """Returns the graph with collectives that start at once, take no time, and wake threads at once."""
    return replace(graph, transfer_ns=np.minimum(graph.transfer_ns, 0), latency_ns=np.minimum(graph.latency_ns, 0),
                   wake_ns=np.minimum(graph.wake_ns, 0))


def faster(graph: Graph, moved_ns: Array, factor: float) -> Graph:
    """Returns the graph with `factor` times the bandwidth; `moved_ns` is the part of each transfer that depends on
    it."""
    return replace(graph, transfer_ns=graph.transfer_ns - (1 - 1 / factor) * moved_ns)


def moved_by_bytes(program: RunProgram, job: Job) -> tuple[Floats, list[Bandwidth]]:
    """Returns how much of the transfer of each part depends on bandwidth, in ns, and the shares by op and group size.

    The rest is what a collective would take without bytes: the intercept of a line through the median transfers by
    size, if sizes differ enough.

    Raises:
        DataError: No sizes were recorded.
    """
    table = _parts(program, job)
    if table["size_bytes"].null_count() == len(table):
        raise DataError("--bandwidth needs the sizes of collectives, and none were recorded",
                        hint="--free-communication removes all communication time instead")
    fixed, found = np.zeros(len(table)), list[Bandwidth]()
    for (op, ranks), mine in table.partition_by("op", "num_ranks", as_dict=True, maintain_order=True).items():
        start = _without_bytes(mine)
        rows = mine["part"].to_numpy()
        # parts of unknown size remain unchanged
        sized = mine["size_bytes"].is_not_null().to_numpy()
        fixed[rows] = np.where(sized, start or 0.0, np.inf)
        total = float(mine["transfer_ns"].clip(0).sum())
        grows = float((mine["transfer_ns"].filter(mine["size_bytes"].is_not_null()) - (start or 0.0)).clip(0).sum())
        found.append(Bandwidth(op=str(op), num_ranks=int(ranks), ratio=None if start is None else
                               grows / total if total else 0.0))
    return np.clip(job.graph.transfer_ns - fixed, 0, None), found


def _parts(program: RunProgram, job: Job) -> pl.DataFrame:
    """Returns a row for each part, in their order: collective, rank, transfer, op and sizes."""
    graph, events = job.graph, job.graph.events
    calls = np.flatnonzero(events.kind == CALL)
    calls = calls[np.argsort(events.part[calls])]
    parts = pl.DataFrame({"part": np.arange(len(graph.parts)), "collective": job.collective,
                          "rank": job.ranks[events.rank[calls]], "transfer_ns": graph.transfer_ns})
    largest = program.rows.group_by("collective").agg(
        pl.col("op").first().cast(pl.String).fill_null(""), pl.col("num_ranks").first().fill_null(0),
        pl.col("size_bytes").max())
    return parts.join(largest, on="collective", how="left", maintain_order="left")


def _without_bytes(mine: pl.DataFrame) -> float | None:
    """Returns how long calls would take without bytes, in ns; None if their sizes do not differ enough."""
    each = mine.drop_nulls("size_bytes").filter(pl.col("size_bytes") > 0).group_by("size_bytes").agg(
        ns=pl.col("transfer_ns").median(), number=pl.len()).sort("size_bytes")
    if len(each) < 2 or each["size_bytes"][-1] < APART * each["size_bytes"][0]:
        return None
    size, ns, number = (each[name].to_numpy().astype(float) for name in ("size_bytes", "ns", "number"))
    slope, start = np.polyfit(size, ns, 1, w=np.sqrt(number))
    # if large calls are no slower than small ones, nothing depends on bandwidth
    return float(max(start, 0.0)) if slope > 0 else float("inf")
