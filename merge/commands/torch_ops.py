"""Makes the text of `distprof ops --torch`."""

from __future__ import annotations

from pathlib import Path

from distprof.errors import DataError, UsageError
from distprof.merge.operators.merged_operators import run_of_merge
from distprof.merge.run.open_run import open_run
from distprof.merge.run.timelines import with_timelines
from distprof.merge.text.torch_table import ROWS, SORTS, torch_table
from distprof.merge.torch_table.averages import torch_averages
from distprof.merge.torch_table.session import read_session
from distprof.units import spans


def torch_ops(path: Path, *more: Path, rank: int | None, by_shape: bool, num_frames: int, sort: str | None,
              top: int | None) -> str:
    """Operators of one rank as torch.profiler prints them.

    Args:
        path: A run directory, traces of other programs, or a merge of them.
        *more: Further run directories of the same job.
        rank: Which; None: the only one.
        by_shape: Keeps calls with other shapes apart.
        num_frames: Keeps calls with other innermost frames of Python apart.
        sort: What torch's table takes for `sort_by`.
        top: Rows shown.

    Raises:
        DataError: The rank has no timeline.
        UsageError: There is no such rank or order.
    """
    run = with_timelines(open_run(*run_of_merge(path, *more).paths))
    traced = {one.number: one for one in run.ranks if one.trace is not None}
    if rank is None and len(traced) > 1:
        raise UsageError(f"--torch needs --rank: there are {len(traced)} ranks", hint="--torch --rank 0")
    if rank is not None and rank not in traced:
        raise UsageError(f"rank {rank} has no timeline; --rank can be {spans(sorted(traced))}")
    if sort is not None and sort not in SORTS:
        raise UsageError(f"unknown --sort {sort!r} for --torch; choose from {', '.join(SORTS)}")
    if not traced:
        raise DataError(f"no timeline in {run.path}")
    session = read_session(traced[min(traced) if rank is None else rank])
    return torch_table(torch_averages(session, by_shape=by_shape, num_frames=num_frames), sort=sort, rows=top or ROWS)
