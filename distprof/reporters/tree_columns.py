"""Columns of a module tree: title, text of a value, and when the column is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distprof.errors import UsageError
from distprof.reporters.tree import TreeRow
from distprof.units import UNKNOWN, duration, percent, si, size

SHOWN_SHAPES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeColumn:
    """How one quantity is shown."""

    title: str
    text: Callable[[Any], str]
    left: bool = False
    """Align left, for words; numbers are aligned right."""
    is_informative: Callable[[Any], bool] = lambda value: value is not None
    """The column is shown if this holds for a value in at least one row."""


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    """((1, 3, 224, 224),) -> "1,3,224,224", as --input-shape takes it."""
    if not shapes:
        return UNKNOWN
    shown = "; ".join(",".join(map(str, shape)) or "scalar" for shape in shapes[:SHOWN_SHAPES])
    return f"{shown}; {len(shapes) - SHOWN_SHAPES} more" if len(shapes) > SHOWN_SHAPES else shown


TREE_COLUMNS: dict[str, TreeColumn] = {
    "class_name": TreeColumn(title="class", text=str, left=True),
    "input_shapes": TreeColumn(title="input", text=_shapes, left=True, is_informative=bool),
    "output_shapes": TreeColumn(title="output", text=_shapes, left=True, is_informative=bool),
    "calls": TreeColumn(title="calls", text=si, is_informative=lambda value: value is not None and value > 1),
    "params": TreeColumn(title="params", text=si),
    "trainable": TreeColumn(title="trainable", text=str, is_informative=lambda value: value in ("False", "Partial")),
    "macs": TreeColumn(title="MACs", text=si),
    "fwd_flops": TreeColumn(title="fwd FLOPs", text=si),
    "bwd_flops": TreeColumn(title="bwd FLOPs", text=si, is_informative=bool),
    "recompute_flops": TreeColumn(title="recomputed", text=si, is_informative=bool),
    "flops_share": TreeColumn(title="% FLOPs", text=percent),
    "elements": TreeColumn(title="elements", text=si),
    "io_bytes": TreeColumn(title="bytes", text=size),
    "fwd_time_ns": TreeColumn(title="forward", text=duration),
    "fwd_self_time_ns": TreeColumn(title="fwd self", text=duration),
    "bwd_time_ns": TreeColumn(title="backward", text=duration),
    "bwd_self_time_ns": TreeColumn(title="bwd self", text=duration),
    "recompute_time_ns": TreeColumn(title="recompute", text=duration),
    "time_share": TreeColumn(title="% time", text=percent),
    "mfu": TreeColumn(title="MFU", text=percent),
    "intensity": TreeColumn(title="FLOP/byte", text="{:.2f}".format),
    "bound": TreeColumn(title="bound by", text=str, left=True),
    "slowest_rank": TreeColumn(title="slowest rank", text=str),
}
"""Key -> column, in the order of the table."""

ON_DEMAND = ("elements", "io_bytes", "intensity")
"""Shown only if a user names them."""
DROP_ORDER = ("output_shapes", "input_shapes", "bound", "intensity", "recompute_time_ns", "fwd_self_time_ns",
               "bwd_self_time_ns", "mfu", "trainable", "class_name", "calls", "recompute_flops", "flops_share",
               "macs")
"""Left out in this order if a table is wider than the terminal, with a remark below it. Others always stay."""


def value(row: TreeRow, key: str) -> Any:
    """Value of a row in a column; None if it is unknown."""
    return row.class_name if key == "class_name" else row.values.get(key)


def cell_text(row: TreeRow, key: str) -> str:
    """The text of a cell; a dash if the value is unknown."""
    found = value(row, key)
    return UNKNOWN if found is None else TREE_COLUMNS[key].text(found)


def shown_columns(rows: Sequence[TreeRow], wanted: Sequence[str] | None) -> list[str]:
    """Keys of the columns to show: `wanted`, or all that are informative.

    Raises:
        UsageError: There is no such column.
    """
    if wanted is None:
        return [key for key, column in TREE_COLUMNS.items()
                if key not in ON_DEMAND and any(column.is_informative(value(row, key)) for row in rows)]
    unknown = [key for key in wanted if key not in TREE_COLUMNS]
    if unknown:
        raise UsageError(f"unknown columns {', '.join(unknown)}; choose from {', '.join(TREE_COLUMNS)}")
    return list(wanted)
