"""Rows of operators: the columns that a timeline, or a merge, gives."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from distprof.merge.operators.shapes import ShapeCoverage
from distprof.merge.operators.timeline.grouped_calls import COSTS, MEMORY

WORDS = ("op", "type", "dtypes", "module_path", "class_name", "phase", "stream", "launched_by")
KEYS = {**dict.fromkeys(WORDS, pl.Categorical()), "shapes": pl.String(), "stack": pl.String(), "step": pl.Int64()}
"""What calls of a row share. `stream`: of a device; `launched_by`: the operator of a slice of a device or the launch of
its graph; `stack`: the functions of Python around the calls, innermost first, null where that was not asked for. Few
words stand in many rows: as categories they are compared, and grouped, as numbers. Shapes and stacks may be others in
each row."""
SUMS = ("calls", "host_ns", "self_host_ns", "device_ns", "self_device_ns", "squared_ns")
SCHEMA = {"rank": pl.Int64(), **KEYS, **dict.fromkeys(SUMS, pl.Int64()), "squared_ns": pl.Float64(),
          "min_ns": pl.Int64(), "max_ns": pl.Int64(), **dict.fromkeys((*MEMORY, *COSTS), pl.Int64())}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOperators:
    """What was found in a timeline."""

    rows: pl.DataFrame
    """`SCHEMA`: `calls`; times in ns, added up over calls, on the host and on a device, with and without what lies
    inside; `squared_ns`, `min_ns` and `max_ns` of the calls' durations; memory, where the timeline has it; FLOPs and
    bytes, where they follow from shapes. An operator that passes on to itself, with the same tensors, is one call."""
    by_shapes: ShapeCoverage | None
    """None where there are no shapes, or they were not asked."""


def as_texts(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with texts in place of categories."""
    return rows.with_columns(pl.col(pl.Categorical).cast(pl.String))
