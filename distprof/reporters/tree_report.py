"""A printable module tree with remarks and totals below it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from distprof.reporters.tree import ShownModules, TreeLine, TreeRow, TreeView, select_modules
from distprof.reporters.tree_columns import DROP_ORDER, TREE_COLUMNS, cell_text, shown_columns
from distprof.terminal import WIDE, Shown, visible
from distprof.units import counted

TEXT_WIDTH = 120
SHORTEST_NAME = 16
"""Least width of names if there is little room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """Prints itself: `print(report)` plainly, `rich.print(report)` as wide as the terminal."""

    rows: Sequence[TreeRow]
    view: TreeView
    footer: Sequence[tuple[str, str]] = ()
    """Label and text of the lines below the table."""

    def __str__(self) -> str:
        """Plain text of 120 columns, wider only if numbers need it."""
        return self.text(TEXT_WIDTH)

    def text(self, width: int | None = None) -> Shown:
        """Plain text; without a width it has every column and no line is folded."""
        out = io.StringIO()
        console = Console(file=out, width=width or WIDE, color_system=None, force_terminal=False, highlight=False,
                          legacy_windows=False, _environ={})
        console.print(self.renderable(width), crop=False)
        return Shown.drawn("\n".join(line.rstrip() for line in out.getvalue().splitlines()))

    def renderable(self, width: int | None = None) -> RenderableType:
        """The same for a rich console.

        No number is cut: columns that do not fit are left out and named, and long names are folded. If that is not
        enough, the table is wider; print it with `crop=False`.
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
    """Leaves out columns until the rest fits."""
    kept, lines = list(keys), list(lines)
    for key in DROP_ORDER:
        if _width(_table(lines, kept)) <= width:
            break
        kept = [other for other in kept if other != key]
    return kept


def _fold_names(table: Table, lines: Sequence[TreeLine], width: int) -> None:
    """Narrows the names by what is missing, while they stay readable."""
    needed = _width(table)
    if needed > width:
        longest = max(len(_name(line)) for line in lines)
        table.width = max(width, needed - max(longest - SHORTEST_NAME, 0))


def _width(table: Table) -> int:
    wide = Console(width=WIDE, _environ={})
    return Measurement.get(wide, wide.options, table).maximum


def _table(lines: Iterable[TreeLine], keys: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    # only names are folded, never numbers and shapes
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
    """Explanations that the table needs."""
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


