"""Columns a table of modules may have: a value comes in, the text of its cell goes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from distprof.errors import UsageError
from distprof.reporters.row import Row
from distprof.units import UNKNOWN, duration, percent, si, size

SHOWN_SHAPES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """How one quantity is shown."""

    title: str
    text: Callable[[Any], str]
    left: bool = False
    """Words stand left, numbers right."""
    telling: Callable[[Any], bool] = lambda value: value is not None
    """The column is shown where this is so in at least one row."""


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    """((1, 3, 224, 224),) -> "1,3,224,224", as --input-shape takes it."""
    if not shapes:
        return UNKNOWN
    shown = "; ".join(",".join(map(str, shape)) or "scalar" for shape in shapes[:SHOWN_SHAPES])
    return f"{shown}; {len(shapes) - SHOWN_SHAPES} more" if len(shapes) > SHOWN_SHAPES else shown


def _rate(ratio: float) -> str:
    return f"{ratio:.2f}"


def _some(value: Any) -> bool:
    return bool(value)


COLUMNS: dict[str, Column] = {
    "class_name": Column(title="class", text=str, left=True),
    "input_shapes": Column(title="input", text=_shapes, left=True, telling=_some),
    "output_shapes": Column(title="output", text=_shapes, left=True, telling=_some),
    "calls": Column(title="calls", text=si, telling=lambda value: value is not None and value > 1),
    "params": Column(title="params", text=si),
    "trainable": Column(title="trainable", text=str, telling=lambda value: value in ("False", "Partial")),
    "macs": Column(title="MACs", text=si),
    "fwd_flops": Column(title="fwd FLOPs", text=si),
    "bwd_flops": Column(title="bwd FLOPs", text=si, telling=_some),
    "recompute_flops": Column(title="recomputed", text=si, telling=_some),
    "flops_share": Column(title="% FLOPs", text=percent),
    "elements": Column(title="elements", text=si),
    "io_bytes": Column(title="bytes", text=size),
    "fwd_time_ns": Column(title="forward", text=duration),
    "fwd_self_time_ns": Column(title="fwd self", text=duration),
    "bwd_time_ns": Column(title="backward", text=duration),
    "bwd_self_time_ns": Column(title="bwd self", text=duration),
    "recompute_time_ns": Column(title="recompute", text=duration),
    "time_share": Column(title="% time", text=percent),
    "mfu": Column(title="MFU", text=percent),
    "intensity": Column(title="FLOP/byte", text=_rate),
    "bound": Column(title="bound by", text=str, left=True),
    "slowest_rank": Column(title="slowest rank", text=str),
}
"""Key -> column, in the order they stand."""

ON_DEMAND = ("elements", "io_bytes", "intensity")
"""Shown only where a user names them."""
FIRST_TO_GO = ("output_shapes", "input_shapes", "bound", "intensity", "recompute_time_ns", "fwd_self_time_ns",
               "bwd_self_time_ns", "mfu", "trainable", "class_name", "calls", "recompute_flops", "flops_share",
               "macs")
"""Left out, in this order, where a table is wider than the terminal; the table says so. Others never are."""


def value(row: Row, key: str) -> Any:
    """What a row has for a column; None where it is unknown."""
    return row.class_name if key == "class_name" else row.values.get(key)


def cell(row: Row, key: str) -> str:
    """The text of a cell; a dash where nothing is known."""
    found = value(row, key)
    return UNKNOWN if found is None else COLUMNS[key].text(found)


def choose(rows: Iterable[Row], wanted: Sequence[str] | None) -> list[str]:
    """Keys of the columns to show: those that were asked for, else those that tell something.

    Raises:
        UsageError: There is no such column.
    """
    if wanted is None:
        listed = list(rows)
        return [key for key, column in COLUMNS.items()
                if key not in ON_DEMAND and any(column.telling(value(row, key)) for row in listed)]
    unknown = [key for key in wanted if key not in COLUMNS]
    if unknown:
        raise UsageError(f"expected columns of {', '.join(COLUMNS)}, found {', '.join(unknown)}")
    return list(wanted)
