"""Communication of each rank before it is matched: from a run directory, or from traces of other programs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from distprof.contract.problems import Problem
from distprof.contract.tables import COLLECTIVES
from distprof.merge.run.group_ranks import coded
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import CATEGORIES, Loaded, pieces, read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRows:
    """One row per communication op of a rank, in the order in which the rank issued them."""

    rows: pl.DataFrame
    """Rows of all ranks: the columns of `COLLECTIVES` as converted by `coded`, and `comms_id`, the backend's id of a
    collective; times are on the rank's own clock. Rows from traces of other programs may have many nulls, and also have
    `lane`, which tells unnamed communicators apart."""
    ended: Sequence[int] = ()
    """Ranks that made no call after their last row, because their script had ended."""
    problems: Sequence[Problem] = ()


def recorded_rows(run: Run, steps: Collection[int] | None = None) -> RankRows:
    """Returns the rows of every rank of a run directory whose table can be read.

    Args:
        run: The run, or some of its ranks.
        steps: Steps that are returned; None for all.
    """
    def prepared(rows: pl.DataFrame) -> pl.DataFrame:
        return coded(rows if steps is None else rows.filter(pl.col("step").is_in(list(steps))))

    return _of(run, read_table(run, COLLECTIVES, prepared, CATEGORIES))


def recorded_batches(run: Run) -> Iterator[RankRows]:
    """Yields the same for a few ranks at a time."""
    return map(partial(_of, run), pieces(run, COLLECTIVES, coded, CATEGORIES))


def _of(run: Run, found: Loaded) -> RankRows:
    read = set(found.ranks)
    ended = [rank.number for rank in run.ranks
             if rank.number in read and rank.recorded is not None and rank.recorded.has_last_calls]
    return RankRows(rows=found.rows.with_columns(comms_id=pl.lit(None, pl.Categorical)), ended=ended,
                    problems=found.problems)
