"""Matches the communication of a run: which rows of different ranks are one collective. It needs no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from distprof.contract.problems import Problem, Remark
from distprof.merge.match.foreign_rows import foreign_rows, remarks_of
from distprof.merge.match.matching import match
from distprof.merge.match.rank_rows import RankRows, recorded_rows
from distprof.merge.run.run_model import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedRun:
    """The matched rows of all ranks."""

    rows: pl.DataFrame
    """As `match` gives them: the numbers of collectives mean nothing yet, times are of each rank's own clock."""
    problems: Sequence[Problem]
    """Tables that cannot be read."""
    remarks: Sequence[Remark]
    """What of the matches is inferred."""


def match_run(run: Run) -> MatchedRun:
    """Reads the communication of every rank, once, and matches it."""
    found = rows_of_ranks(run)
    rows = match(found.rows, ended=found.ended, world_size=run.world_size)
    return MatchedRun(rows=rows, problems=found.problems, remarks=remarks_of(rows) if run.kind == "traces" else [])


def rows_of_ranks(run: Run) -> RankRows:
    """Communication of every rank, whoever recorded it."""
    return foreign_rows(run) if run.kind == "traces" else recorded_rows(run)
