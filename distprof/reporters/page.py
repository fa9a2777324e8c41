"""The text that a command prints: lines, tables and trees. On a terminal, names in tables are shortened to its width,
unless the output is piped or --wide is given.

Invisible characters in every piece are escaped before it gets a style, so the only control characters are line ends and
our own colours.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from distprof.terminal import WIDE, Shown, visible

if TYPE_CHECKING:
    from rich.console import Console

    from distprof.reporters.tree_report import TreeReport

GAP = 3
"""Characters between two cells of a table."""
LEAST = 12
"""Names are not shortened below this number of characters."""
WHOLE = "DISTPROF_WIDE"
"""Environment variable set by --wide."""


class Page:
    """Collects what a command prints."""

    def __init__(self) -> None:
        """Chooses colour and width according to standard output."""
        self._terminal = sys.stdout is not None and sys.stdout.isatty()
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self._coloured = self._terminal and not plain
        self._out = io.StringIO()
        self.width = shutil.get_terminal_size().columns if self._terminal else 100
        """Width for drawings, in characters."""
        self._fit = self.width if self._terminal else None

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console  # slow to import, and plain text does not need it

        # tables take the width they need: a cut number is wrong, a wide line only wraps
        return Console(file=self._out, width=WIDE, highlight=False, legacy_windows=False, soft_wrap=True,
                       force_terminal=self._coloured)

    def line(self, text: str = "", style: str | None = None) -> None:
        """Adds one line, even if the text contains line ends."""
        if style is None:
            self._out.write(f"{visible(text)}\n")
        else:
            self.marked([(text, style)])

    def marked(self, parts: Iterable[tuple[str, str | None]]) -> None:
        """Adds one line of pieces, each in its style (on a terminal)."""
        if not self._coloured:
            self._out.write(f"{''.join(visible(text) for text, _ in parts)}\n")
            return
        from rich.text import Text

        self._console.print(Text.assemble(*((visible(text), style or "") for text, style in parts)), soft_wrap=True)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
        """Adds a table; the first `left` columns are words, the others numbers."""
        titles, cells = [visible(title) for title in header], [[visible(cell) for cell in row] for row in rows]
        if self._fit is not None and not os.environ.get(WHOLE):
            cells = fitted(titles, cells, left, self._fit)
        room = [max(map(_columns, column)) for column in zip(titles, *cells, strict=True)]
        for number, row in enumerate((titles, *cells)):
            blanks = [" " * (wide - _columns(cell)) for cell, wide in zip(row, room, strict=True)]
            line = (" " * GAP).join(cell + blank if place < left else blank + cell
                                    for place, (cell, blank) in enumerate(zip(row, blanks, strict=True)))
            self.marked([(line, None if number else "bold")])
            if not number:
                self._out.write(f"{'─' * (sum(room) + GAP * (len(room) - 1))}\n")

    def report(self, report: TreeReport) -> None:
        """Adds a tree of modules: as wide as the terminal, or complete without one."""
        self._console.print(report.renderable(self._fit), width=self._fit, crop=False)

    def text(self) -> Shown:
        """Returns the whole page without trailing blanks."""
        return Shown.drawn("\n".join(line.rstrip() for line in self._out.getvalue().splitlines()))


def _columns(text: str) -> int:
    """Returns the number of terminal columns of a text: some characters take two, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fitted(header: Sequence[str], rows: Sequence[Sequence[str]], left: int, width: int) -> list[list[str]]:
    """Returns the rows of a table with the names in its first columns shortened in the middle until it fits; numbers
    are never shortened.

    Args:
        header: Titles.
        rows: Cells.
        left: Number of columns with names.
        width: Width of the terminal.
    """
    room = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    while sum(room) + GAP * (len(room) - 1) > width:
        longest = max(range(min(left, len(room))), key=room.__getitem__, default=None)
        if longest is None or room[longest] <= max(LEAST, len(header[longest])):
            break
        room[longest] -= 1
    return [[middle(cell, room[place]) if place < left else cell for place, cell in enumerate(row)] for row in rows]


def middle(text: str, width: int) -> str:
    """Shortens a text to at most `width` characters by omitting its middle: `layers.0...query`."""
    if len(text) <= width:
        return text
    kept = width - 3
    return f"{text[:(kept + 1) // 2]}...{text[len(text) - kept // 2:]}"
