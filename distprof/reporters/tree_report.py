"""A printable module tree with its columns (title, text of a value, when to show it), followed by remarks and
totals."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from distprof.errors import UsageError
from distprof.reporters.tree import ShownModules, TreeLine, TreeRow, TreeView, select_modules
from distprof.terminal import WIDE, Shown, visible
from distprof.units import UNKNOWN, counted, duration, percent, si, size

SHOWN_SHAPES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeColumn:
    """How one quantity is shown."""

    title: str
    text: Callable[[Any], str]
    left: bool = False
    """Whether to align left, for words; numbers are aligned right."""
    is_informative: Callable[[Any], bool] = lambda value: value is not None
    """The column is shown if this returns True for at least one row."""


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    """Formats shapes: ((1, 3, 224, 224),) -> "1,3,224,224", as --input-shape accepts them."""
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
"""Columns shown only if a user names them."""
DROP_ORDER = ("output_shapes", "input_shapes", "bound", "intensity", "recompute_time_ns", "fwd_self_time_ns",
               "bwd_self_time_ns", "mfu", "trainable", "class_name", "calls", "recompute_flops", "flops_share",
               "macs")
"""Columns omitted, in this order, if a table is wider than the terminal, with a remark below it. Others always stay."""


def value(row: TreeRow, key: str) -> Any:
    """Returns the value of a row in a column; None if unknown."""
    return row.class_name if key == "class_name" else row.values.get(key)


def cell_text(row: TreeRow, key: str) -> str:
    """Returns the text of a cell; a dash if the value is unknown."""
    found = value(row, key)
    return UNKNOWN if found is None else TREE_COLUMNS[key].text(found)


def shown_columns(rows: Sequence[TreeRow], wanted: Sequence[str] | None) -> list[str]:
    """Returns the keys of the columns to show: `wanted`, or all that are informative.

    Raises:
        UsageError: A column is unknown.
    """
    if wanted is None:
        return [key for key, column in TREE_COLUMNS.items()
                if key not in ON_DEMAND and any(column.is_informative(value(row, key)) for row in rows)]
    unknown = [key for key in wanted if key not in TREE_COLUMNS]
    if unknown:
        raise UsageError(f"unknown columns {', '.join(unknown)}; choose from {', '.join(TREE_COLUMNS)}")
    return list(wanted)


TEXT_WIDTH = 120
SHORTEST_NAME = 16
"""Minimum width of names if there is little space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """A report to be printed: with `print(report)` as plain text, with `rich.print(report)` as wide as the terminal."""

    rows: Sequence[TreeRow]
    view: TreeView
    footer: Sequence[tuple[str, str]] = ()
    """Label and text of the lines below the table."""

    def __str__(self) -> str:
        """Returns plain text, 120 characters wide, or wider only if numbers need it."""
        return self.text(TEXT_WIDTH)

    def text(self, width: int | None = None) -> Shown:
        """Returns plain text; without a width, it has all columns, and no line is folded."""
        out = io.StringIO()
        console = Console(file=out, width=width or WIDE, color_system=None, force_terminal=False, highlight=False,
                          legacy_windows=False, _environ={})
        console.print(self.renderable(width), crop=False)
        return Shown.drawn("\n".join(line.rstrip() for line in out.getvalue().splitlines()))

    def renderable(self, width: int | None = None) -> RenderableType:
        """Returns the report for a rich console.

        Numbers are never cut: columns that do not fit are omitted and listed, and long names are folded. If that is not
        enough, the table is wider, so print it with `crop=False`.
        """
        selection = select_modules(self.rows, self.view)
        keys = shown_columns([line.row for line in selection.lines], self.view.columns)
        kept = keys if self.view.columns is not None or width is None else _fitting(selection.lines, keys, width)
        table = _table(selection.lines, kept)
        if width is not None:
            _fold_names(table, selection.lines, width)
        remarks = (*_remarks(selection, self.view, [key for key in keys if key not in kept]), *self.footer)
        return Group(table, Text(""), _grid(remarks)) if remarks else table

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.renderable(options.max_width)


def _fitting(lines: Iterable[TreeLine], keys: Sequence[str], width: int) -> list[str]:
    """Returns the columns without those that must be omitted for the table to fit."""
    kept, lines = list(keys), list(lines)
    for key in DROP_ORDER:
        if _width(_table(lines, kept)) <= width:
            break
        kept = [other for other in kept if other != key]
    return kept


def _fold_names(table: Table, lines: Sequence[TreeLine], width: int) -> None:
    """Narrows the column of names as far as necessary, but not below `SHORTEST_NAME`."""
    needed = _width(table)
    if needed > width:
        longest = max(len(_name(line)) for line in lines)
        table.width = max(width, needed - max(longest - SHORTEST_NAME, 0))


def _width(table: Table) -> int:
    wide = Console(width=WIDE, _environ={})
    return Measurement.get(wide, wide.options, table).maximum


def _table(lines: Iterable[TreeLine], keys: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    # only names are folded, never numbers or shapes
    table.add_column("module", overflow="fold")
    for key in keys:
        column = TREE_COLUMNS[key]
        table.add_column(column.title, justify="left" if column.left else "right", no_wrap=True)
    for line in lines:
        table.add_row(_name(line), *(Text(visible(cell_text(line.row, key))) for key in keys))
    return table


def _name(line: TreeLine) -> Text:
    times = f" ({line.repeats} x)" if line.repeats > 1 else ""
    marks = "".join(f" ({mark})" for mark in line.row.marks)
    return Text.assemble((line.guide, "dim"), visible(line.name), (visible(times + marks), "dim"))


def _remarks(selection: ShownModules, view: TreeView, left_out: Sequence[str]) -> list[tuple[str, str]]:
    """Returns explanations that the table needs."""
    remarks = []
    if selection.num_shown < selection.num_modules:
        is_cut = view.depth is not None and view.depth < selection.deepest
        limits = [f"depth {view.depth} of {selection.deepest}"] if is_cut else []
        limits += [f"top {view.top} by {view.sort}"] if view.top is not None else []
        every = counted(selection.num_modules, "module")
        remarks.append(("shown", f"{selection.num_shown} of {every}: {', '.join(limits)}"))
    if any(line.repeats > 1 for line in selection.lines):
        remarks.append(("(N x)", "N identical neighbours, including submodules; the numbers are those of each one"))
    if any("shared" in line.row.marks for line in selection.lines):
        remarks.append(("(shared)", "one module under several paths: work is listed where it was called, params on "
                                    "every line; totals count them once"))
    if left_out:
        remarks.append(("omitted", f"{', '.join(TREE_COLUMNS[key].title for key in left_out)}: no space"))
    return remarks


def _grid(remarks: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in remarks:
        grid.add_row(Text(visible(label)), Text(visible(text)))
    return grid
