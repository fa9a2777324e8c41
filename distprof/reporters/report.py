"""A table of modules and what stands below it: rows, totals and a view come in, text or a rich renderable goes out."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from distprof.reporters.columns import COLUMNS, FIRST_TO_GO, cell, choose
from distprof.reporters.row import Row
from distprof.reporters.view import Line, Selection, View, select

TEXT_WIDTH = 120
WIDE = 10_000
"""More columns than any table has."""
SHORTEST_NAME = 16
"""Columns that are left to names where there is little room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Prints itself: `print(report)` plainly, `rich.print(report)` as wide as the terminal."""

    rows: Sequence[Row]
    view: View
    footer: Sequence[tuple[str, str]] = ()
    """Label and text of the lines below the table."""

    def __str__(self) -> str:
        """Plain text of 120 columns, wider only where numbers need it."""
        return self.text(TEXT_WIDTH)

    def text(self, width: int | None = None) -> str:
        """Plain text; without a width every column is there and no line is folded."""
        out = io.StringIO()
        console = Console(file=out, width=width or WIDE, color_system=None, force_terminal=False, highlight=False,
                          legacy_windows=False, _environ={})
        console.print(self.renderable(width), crop=False)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def renderable(self, width: int | None = None) -> RenderableType:
        """The same for a rich console.

        No number is cut: columns that do not fit are left out and named, long names are folded. Where that is not
        enough the table is wider; print it with `crop=False`.
        """
        selection = select(self.rows, self.view)
        keys = choose([line.row for line in selection.lines], self.view.columns)
        kept = keys if self.view.columns is not None or width is None else _fitting(selection.lines, keys, width)
        table = _table(selection.lines, kept)
        if width is not None:
            _fold_names(table, selection.lines, width)
        told = (*_remarks(selection, self.view, [key for key in keys if key not in kept]), *self.footer)
        return Group(table, Text(""), _grid(told)) if told else table

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.renderable(options.max_width)


def _fitting(lines: Iterable[Line], keys: Sequence[str], width: int) -> list[str]:
    """Leaves out columns until the others fit."""
    kept, lines = list(keys), list(lines)
    for key in FIRST_TO_GO:
        if _width(_table(lines, kept)) <= width:
            break
        kept = [other for other in kept if other != key]
    return kept


def _fold_names(table: Table, lines: Sequence[Line], width: int) -> None:
    """Takes from the names what is missing, as long as they can be read."""
    needed = _width(table)
    if needed > width:
        longest = max(len(_name(line)) for line in lines)
        table.width = max(width, needed - max(longest - SHORTEST_NAME, 0))


def _width(table: Table) -> int:
    wide = Console(width=WIDE, _environ={})
    return Measurement.get(wide, wide.options, table).maximum


def _table(lines: Iterable[Line], keys: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    # a long name is folded where there is no room; numbers and shapes are not
    table.add_column("module", overflow="fold")
    for key in keys:
        column = COLUMNS[key]
        table.add_column(column.title, justify="left" if column.left else "right", no_wrap=True)
    for line in lines:
        table.add_row(_name(line), *(Text(cell(line.row, key)) for key in keys))
    return table


def _name(line: Line) -> Text:
    times = f" ({line.repeats} x)" if line.repeats > 1 else ""
    marks = "".join(f" ({mark})" for mark in line.row.marks)
    return Text.assemble((line.guide, "dim"), line.name, (times + marks, "dim"))


def _remarks(selection: Selection, view: View, left_out: Sequence[str]) -> list[tuple[str, str]]:
    """What a reader must know to read the table rightly."""
    told = []
    if selection.num_shown < selection.num_modules:
        limits = [f"depth {view.depth} of {selection.deepest}"] if _cut(view, selection) else []
        limits += [f"top {view.top} by {view.sort}"] if view.top is not None else []
        told.append(("shown", f"{selection.num_shown} of {selection.num_modules} modules: {', '.join(limits)}"))
    if any(line.repeats > 1 for line in selection.lines):
        told.append(("(N x)", "N neighbours with equal numbers all the way down; each has the numbers of the line"))
    if any("shared" in line.row.marks for line in selection.lines):
        told.append(("(shared)", "one module under several paths: its work stands where it was called, its params "
                     "in every line and in totals once"))
    if left_out:
        told.append(("left out", f"{', '.join(COLUMNS[key].title for key in left_out)}: no room"))
    return told


def _cut(view: View, selection: Selection) -> bool:
    return view.depth is not None and view.depth < selection.deepest


def _grid(told: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in told:
        grid.add_row(Text(label), Text(text))
    return grid


