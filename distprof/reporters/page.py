"""Text for the terminal: lines and tables come in, one string goes out; never cut when it is piped."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from distprof.reporters.report import Report

WIDE = 1000
"""More columns than any table has."""


class Page:
    """Collects what a command prints."""

    def __init__(self) -> None:
        """Colour and width follow standard output."""
        self._terminal = sys.stdout is not None and sys.stdout.isatty()
        self._out = io.StringIO()
        self.width = shutil.get_terminal_size().columns if self._terminal else 100
        """Columns for what is drawn to scale."""
        self._fit = self.width if self._terminal else None

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console  # takes a while to import, and plain lines do without

        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        # tables have the width they need: a number that is cut is a wrong number, a wide line only wraps
        return Console(file=self._out, width=WIDE, highlight=False, legacy_windows=False, soft_wrap=True,
                       force_terminal=self._terminal and not plain)

    def line(self, text: str = "", style: str | None = None) -> None:
        """One line as it is."""
        if style is None:
            self._out.write(f"{text}\n")
            return
        from rich.text import Text

        self._console.print(Text(text, style=style), soft_wrap=True)

    def marked(self, parts: Iterable[tuple[str, str | None]]) -> None:
        """One line of pieces, each in its style; on a terminal only."""
        from rich.text import Text

        self._console.print(Text.assemble(*((text, style or "") for text, style in parts)), soft_wrap=True)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
        """A table; the first `left` columns are words, the others numbers."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
        for index, title in enumerate(header):
            table.add_column(title, justify="left" if index < left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._console.print(table, soft_wrap=False)

    def report(self, report: Report) -> None:
        """A tree of modules: as wide as the terminal, whole where there is none."""
        self._console.print(report.renderable(self._fit), width=self._fit, crop=False)

    def text(self) -> str:
        """All of it, without trailing blanks."""
        return "\n".join(line.rstrip() for line in self._out.getvalue().splitlines())
