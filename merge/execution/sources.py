"""What a run has of execution traces: which timelines and which communication belong to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from distprof.contract.passes import TRACE
from distprof.contract.paths import EXECUTION_TIMELINE_JSON
from distprof.contract.problems import Problem, Remark
from distprof.contract.tables import EXECUTION_COLLECTIVES, STEPS
from distprof.merge.execution.pairing import paired
from distprof.merge.match.matched_run import match_run
from distprof.merge.match.matching import match
from distprof.merge.run.group_ranks import coded
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import CATEGORIES, read_table
from distprof.merge.scan.trace_file import TraceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What is joined."""

    ranks: Sequence[Rank]
    """Those with a timeline or an execution trace, which belong together."""
    rows: pl.DataFrame
    """Matched communication, times of each rank's own clock."""
    windows: Mapping[int, tuple[int, int]]
    """Rank -> start and end of the step that is taken of a timeline without an execution trace."""
    step: int | None
    """Its number; None where execution traces say what is taken, or there are no steps."""
    problems: Sequence[Problem] = ()
    remarks: Sequence[Remark] = ()
    """Execution traces of other programs that are not joined."""


def sources_of(run: Run) -> Sources:
    """Finds them: of what distprof recorded the execution pass, without one the last step of the trace pass.

    Raises:
        DataError: There are execution traces of other programs, and none is of a rank.
    """
    if run.kind == "traces":
        pairs = paired(run)
        ranks = [one for one in pairs.ranks if one.trace is not None or one.execution_trace is not None]
        return Sources(ranks=ranks, rows=match_run(run).rows, windows={}, step=None, problems=pairs.problems,
                       remarks=pairs.remarks)
    executed = [_executed(one) for one in run.ranks if one.execution_trace is not None]
    if not executed:
        return _of_trace_pass(run)
    found = read_table(run, EXECUTION_COLLECTIVES, coded, CATEGORIES)
    rows = found.rows.with_columns(comms_id=pl.lit(None, pl.Categorical))
    return Sources(ranks=executed, rows=match(rows, ended=(), world_size=run.world_size), windows={},
                   step=None, problems=found.problems)


def _executed(rank: Rank) -> Rank:
    path = rank.folder / EXECUTION_TIMELINE_JSON
    return replace(rank, trace=TraceFile(path=path) if path.is_file() else None)


def _of_trace_pass(run: Run) -> Sources:
    ranks = [one for one in run.ranks if one.trace is not None]
    steps = read_table(run, STEPS)
    traced = steps.rows.filter(pl.col("pass") == TRACE, pl.col("end_ns").is_not_null())
    last = traced["step"].max()
    chosen = traced.filter(pl.col("step") == last).select("rank", "start_ns", "end_ns")
    windows = {rank: (start, end) for rank, start, end in chosen.iter_rows()}
    return Sources(ranks=ranks, rows=match_run(run).rows, windows=windows, problems=steps.problems,
                   step=int(str(last)) if last is not None else None)
