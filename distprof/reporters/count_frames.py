"""Counts as polars frames. Recording must never import this module, which imports polars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from distprof.contract.columns import Table
from distprof.reporters.count_dict import flat, module_row, op_row
from distprof.reporters.count_schema import COUNT_MODULES, COUNT_OPS

if TYPE_CHECKING:
    from distprof.counting.counts import Counts

POLARS_TYPES = {"int64": pl.Int64, "float64": pl.Float64, "bool": pl.Boolean, "string": pl.String,
                "category": pl.Categorical}


class Frames(NamedTuple):
    """One frame per table of `count_schema`."""

    modules: pl.DataFrame
    ops: pl.DataFrame


def count_frames(counts: Counts) -> Frames:
    """One row per module and per operator."""
    return Frames(_frame(COUNT_MODULES, (module_row(counts, module) for module in counts.modules)),
                  _frame(COUNT_OPS, map(op_row, counts.ops)))


def _frame(table: Table, rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([flat(row) for row in rows],
                        schema={column.name: POLARS_TYPES[column.type] for column in table.columns}, orient="row")
