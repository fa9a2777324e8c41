"""What ran on each rank of a job and its dependencies, one rank at a time, and which files of a run this comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from distprof.contract.passes import TRACE
from distprof.contract.paths import EXECUTION_TIMELINE_JSON
from distprof.contract.problems import Problem, Remark
from distprof.contract.tables import EXECUTION_COLLECTIVES, STEPS
from distprof.errors import DataError
from distprof.merge.execution.communication import Communication, communication
from distprof.merge.execution.dependencies.storage_dependencies import Edges
from distprof.merge.execution.dependencies.stream_waits import DEVICE, StreamWaitEvents
from distprof.merge.execution.in_order import in_order
from distprof.merge.execution.linking import FUNCTION, LEAST, STREAM, Links
from distprof.merge.execution.node_table import read_table
from distprof.merge.execution.pairing import paired
from distprof.merge.execution.rank_graph import RankGraph, rank_graph
from distprof.merge.execution.untimed_communication import with_untimed
from distprof.merge.match.matched_run import match_run
from distprof.merge.match.matching import match
from distprof.merge.operators.shapes import WANTED
from distprof.merge.operators.timeline.rank_timeline import Wanted, read_timeline
from distprof.merge.run import tables
from distprof.merge.run.group_ranks import coded
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import CATEGORIES
from distprof.units import counted, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExecution:
    """The graph of a rank with its dependencies and its communication."""

    rank: Rank
    graph: RankGraph
    edges: Edges
    """Data dependencies: through tensors, the order of threads and streams, launches, and waits."""
    communication: Communication


def rank_execution(rank: Rank, rows: pl.DataFrame, window: tuple[int, int] | None) -> RankExecution:
    """Reads the recordings of a rank.

    Args:
        rank: A rank with a timeline, an execution trace, or both.
        rows: Its communication as `match` returns it, with times on its own clock.
        window: Start and end of the part to use of a timeline without an execution trace.

    Raises:
        DataError: A file is invalid or has no calls, or the two files are of different processes.
    """
    graph, found = rank_calls(rank, rows, window)
    graph, found, needed = in_order(graph, with_untimed(graph, found))
    return RankExecution(rank=rank, graph=graph, edges=needed, communication=found)


def rank_calls(rank: Rank, rows: pl.DataFrame, window: tuple[int, int] | None) -> tuple[RankGraph, Communication]:
    """Reads what ran on a rank, without the dependencies; see `rank_execution`."""
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
    """Returns the communication that was issued (or began, if that is unknown) while the calls of the graph ran."""
    begins = pl.coalesce("enqueue_ns", "start_ns")
    ends = int((graph.start_ns + graph.duration_ns).max())
    return rows.filter(begins >= int(graph.start_ns.min()), begins <= ends)


def each_rank(ranks: Sequence[Rank], rows: pl.DataFrame, windows: Mapping[int, tuple[int, int]]) -> (
        Iterator[RankExecution]):
    """Yields the ranks one by one, so that only one is in memory."""
    for rank in ranks:
        yield rank_execution(rank, rows.filter(pl.col("rank") == rank.number), windows.get(rank.number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The recordings of a run that are joined."""

    ranks: Sequence[Rank]
    """Ranks with a timeline or an execution trace; the two are of the same process."""
    rows: pl.DataFrame
    """Matched communication, with times on each rank's own clock."""
    windows: Mapping[int, tuple[int, int]]
    """Rank -> start and end of the step that is used of a timeline without an execution trace."""
    step: int | None
    """Number of this step; None if execution traces define what is used, or if there are no steps."""
    problems: Sequence[Problem] = ()
    remarks: Sequence[Remark] = ()
    """Execution traces of other programs that are not joined."""


def sources_of(run: Run) -> Sources:
    """Finds the recordings: of distprof's, the execution pass, or the last step of the trace pass if there is none.

    Raises:
        DataError: There are execution traces of other programs, and none can be assigned to a rank.
    """
    if run.kind == "traces":
        pairs = paired(run)
        ranks = [one for one in pairs.ranks if one.trace is not None or one.execution_trace is not None]
        return Sources(ranks=ranks, rows=match_run(run).rows, windows={}, step=None, problems=pairs.problems,
                       remarks=pairs.remarks)
    executed = [one.with_timeline(EXECUTION_TIMELINE_JSON) for one in run.ranks if one.execution_trace is not None]
    if not executed:
        return _of_trace_pass(run)
    found = tables.read_table(run, EXECUTION_COLLECTIVES, coded, CATEGORIES)
    rows = found.rows.with_columns(comms_id=pl.lit(None, pl.Categorical))
    return Sources(ranks=executed, rows=match(rows, ended=(), world_size=run.world_size), windows={},
                   step=None, problems=found.problems)


def _of_trace_pass(run: Run) -> Sources:
    ranks = [one for one in run.ranks if one.trace is not None]
    steps = tables.read_table(run, STEPS)
    traced = steps.rows.filter(pl.col("pass") == TRACE, pl.col("end_ns").is_not_null())
    last = traced["step"].max()
    chosen = traced.filter(pl.col("step") == last).select("rank", "start_ns", "end_ns")
    windows = {rank: (start, end) for rank, start, end in chosen.iter_rows()}
    return Sources(ranks=ranks, rows=match_run(run).rows, windows=windows, problems=steps.problems,
                   step=int(str(last)) if last is not None else None)
