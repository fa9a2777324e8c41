"""What ran on each rank of a job and what depended on what, one rank after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from distprof.errors import DataError
from distprof.merge.execution.communication import Communication, communication
from distprof.merge.execution.dependencies.edges import Edges
from distprof.merge.execution.dependencies.stream_waits import DEVICE, StreamWaitEvents
from distprof.merge.execution.in_order import in_order
from distprof.merge.execution.linking import FUNCTION, LEAST, STREAM, Links
from distprof.merge.execution.node_table import read_table
from distprof.merge.execution.rank_graph import RankGraph, rank_graph
from distprof.merge.execution.untimed_communication import with_untimed
from distprof.merge.operators.shapes.costs import WANTED
from distprof.merge.operators.timeline.rank_timeline import Wanted, read_timeline
from distprof.merge.run.run_model import Rank
from distprof.units import counted, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExecution:
    """A rank."""

    rank: Rank
    graph: RankGraph
    edges: Edges
    """Data dependencies: tensors, the order of threads and streams, launches, waits."""
    communication: Communication


def rank_execution(rank: Rank, rows: pl.DataFrame, window: tuple[int, int] | None) -> RankExecution:
    """Reads what a rank left.

    Args:
        rank: It has a timeline, an execution trace, or both.
        rows: Its communication as `match` gives it, times of its own clock.
        window: Start and end of what is taken of a timeline without an execution trace.

    Raises:
        DataError: A file is not what it should be, there is nothing in it, or the two are of different processes.
    """
    graph, found = rank_calls(rank, rows, window)
    graph, found, needed = in_order(graph, with_untimed(graph, found))
    return RankExecution(rank=rank, graph=graph, edges=needed, communication=found)


def rank_calls(rank: Rank, rows: pl.DataFrame, window: tuple[int, int] | None) -> tuple[RankGraph, Communication]:
    """Reads what ran on a rank, without what needed what; see `rank_execution`."""
    table = read_table(rank.execution_trace) if rank.execution_trace is not None else None
    wanted, waits = Wanted(integers=(FUNCTION, STREAM, DEVICE), texts=WANTED), StreamWaitEvents()
    timeline = read_timeline(rank, waits, wanted) if rank.trace is not None else None
    graph = rank_graph(table, timeline, window)
    if graph.links is not None:
        _check_same_process(rank, graph.links)
    if timeline is not None:
        graph = replace(graph, stream_waits=waits.found())
    return graph, communication(graph, _within(graph, rows))


def _check_same_process(rank: Rank, links: Links) -> None:
    if links.agreement is None or links.agreement >= LEAST:
        return
    assert rank.execution_trace is not None
    assert rank.trace is not None
    share = percent(links.agreement)
    raise DataError(
        f"{rank.execution_trace.name} and {rank.trace.name} are of different processes: of the "
        f"{counted(links.num_compared, 'call')} " + (
            f"with the same number in both, {share} have the same name" if links.linked_by == "id" else
            f"of the shorter one, {share} are in the other with the same name in the same order"),
        hint=f"pass files that one process recorded at the same time ({percent(LEAST)} must agree), or one of the two")


def _within(graph: RankGraph, rows: pl.DataFrame) -> pl.DataFrame:
    """Communication that was issued, or where that is not known began, while the calls of the graph ran."""
    begins = pl.coalesce("enqueue_ns", "start_ns")
    ends = int((graph.start_ns + graph.duration_ns).max())
    return rows.filter(begins >= int(graph.start_ns.min()), begins <= ends)


def each_rank(ranks: Sequence[Rank], rows: pl.DataFrame, windows: Mapping[int, tuple[int, int]]) -> (
        Iterator[RankExecution]):
    """The ranks one by one, so that no more than one is in memory."""
    for rank in ranks:
        yield rank_execution(rank, rows.filter(pl.col("rank") == rank.number), windows.get(rank.number))
