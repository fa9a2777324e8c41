"""Operators of one rank as a table: a row for all calls that share operator, shapes, module, phase and step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.merge.operators.operator_rows import KEYS, SCHEMA, RankOperators
from distprof.merge.operators.shapes import UNKNOWN
from distprof.merge.operators.timeline.grouped_calls import COSTS, MEMORY, grouped_calls
from distprof.merge.operators.timeline.memory_changes import MemoryChanges
from distprof.merge.operators.timeline.rank_timeline import RankTimeline


def rank_operators(rank: int, timeline: RankTimeline, windows: Sequence[tuple[int, int, int]] | None, *,
                   num_frames: int = 0, changes: MemoryChanges | None = None, by_shapes: bool = False) -> RankOperators:
    """The table of a rank.

    Args:
        rank: Its number.
        timeline: Its slices.
        windows: Start, end and number of its steps; None: the trace has marks of them, or is one step.
        num_frames: Functions in `stack`; the timeline has calls of Python where it is above 0.
        changes: Of memory; None or none: `MEMORY` is null.
        by_shapes: Gets FLOPs and bytes from the shapes in the trace; rows with and without them are kept apart. The
            timeline has the texts of `shape_costs.WANTED`.
    """
    calls = grouped_calls(timeline, windows, num_frames=num_frames, changes=changes, by_shapes=by_shapes)
    words = {name: _word(calls.columns[name], known, KEYS[name]) for name, known in calls.words.items()}
    frame = pl.DataFrame({"rank": np.full(calls.num_rows, rank), **calls.columns, **words})
    return RankOperators(by_shapes=calls.by_shapes, rows=frame.with_columns(
        pl.when(pl.col("step") >= 0).then("step").alias("step"),
        *(pl.when(pl.col(name) != UNKNOWN).then(name).alias(name) for name in (*MEMORY, *COSTS)),
    ).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()))


def _word(numbers: Any, known: Sequence[str | None], kind: pl.DataType) -> pl.Series:
    """Texts in place of numbers, null for -1."""
    words = pl.Series([*known, None], dtype=pl.String).cast(kind)
    return words.gather(np.where(numbers < 0, len(known), numbers))
