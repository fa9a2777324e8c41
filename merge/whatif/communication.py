"""Collectives that move faster: for nothing, or with more bandwidth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from distprof.errors import DataError
from distprof.merge.program.job import Job
from distprof.merge.program.run_program import RunProgram
from distprof.merge.replay.graph import CALL, Graph

APART = 2.0
"""Ratio of the largest size to the smallest from which on it shows how transfer grows with bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """What of the transfer of an op, in groups of one size, grows with its bytes."""

    op: str
    num_ranks: int
    ratio: float | None
    """Of its time; None where calls have one size, so that nothing tells. All of it then counts."""


def free(graph: Graph) -> Graph:
    """The graph with collectives that begin at once, move in no time, and wake threads up at once."""
    return replace(graph, transfer_ns=np.minimum(graph.transfer_ns, 0), latency_ns=np.minimum(graph.latency_ns, 0),
                   wake_ns=np.minimum(graph.wake_ns, 0))


def faster(graph: Graph, moved_ns: Any, factor: float) -> Graph:
    """The graph with so many times the bandwidth; `moved_ns` of each part is what of its transfer depends on that."""
    return replace(graph, transfer_ns=graph.transfer_ns - (1 - 1 / factor) * moved_ns)


def moved_by_bytes(program: RunProgram, job: Job) -> tuple[Any, list[Bandwidth]]:
    """Of each part, what of its transfer depends on bandwidth; and what that rests on, by op and size of group.

    The rest is what a collective would take without bytes: where a line through the median transfers of sizes that
    are far enough apart begins.

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
        # what has no size is left as it is
        sized = mine["size_bytes"].is_not_null().to_numpy()
        fixed[rows] = np.where(sized, start or 0.0, np.inf)
        total = float(mine["transfer_ns"].clip(0).sum())
        grows = float((mine["transfer_ns"].filter(mine["size_bytes"].is_not_null()) - (start or 0.0)).clip(0).sum())
        found.append(Bandwidth(op=str(op), num_ranks=int(ranks), ratio=None if start is None else
                               grows / total if total else 0.0))
    return np.clip(job.graph.transfer_ns - fixed, 0, None), found


def _parts(program: RunProgram, job: Job) -> pl.DataFrame:
    """A row for each part, in their order."""
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
    """How long calls would take without bytes; None where their sizes do not tell."""
    each = mine.drop_nulls("size_bytes").filter(pl.col("size_bytes") > 0).group_by("size_bytes").agg(
        ns=pl.col("transfer_ns").median(), number=pl.len()).sort("size_bytes")
    if len(each) < 2 or each["size_bytes"][-1] < APART * each["size_bytes"][0]:
        return None
    size, ns, number = (each[name].to_numpy().astype(float) for name in ("size_bytes", "ns", "number"))
    slope, start = np.polyfit(size, ns, 1, w=np.sqrt(number))
    # where large calls are no slower than small ones, nothing depends on bandwidth
    return float(max(start, 0.0)) if slope > 0 else float("inf")
