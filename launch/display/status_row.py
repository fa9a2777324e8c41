"""The last row of a terminal, kept for a line of ours while other processes print to the same terminal.

Whoever prints knows nothing of that line, and may be in the middle of one of its own. So the row is taken out of the
region that scrolls, and the cursor is put back where it was: what others print stays what it is, and so does what they
write to a pipe or a file, which no byte of ours ever reaches. Each change is one write, which the kernel does not mix
with others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from distprof.terminal import visible

FEWEST_ROWS, FEWEST_COLUMNS = 4, 30
SAVE, RESTORE = "\x1b7", "\x1b8"
"""The cursor: where it is, and its colour."""
FAMILIES = ("xterm", "tmux", "screen", "rxvt", "alacritty", "foot", "linux", "vte", "konsole", "gnome", "wezterm", "st")
"""Terminals whose rows can be told apart. xterm-color is a notebook."""
OTHERS = ("STY", "JPY_PARENT_PID", "CI")
"""Variables of GNU screen, which forgets what scrolls away above a row that is kept, of notebooks, and of logs."""
WHOLE = "\x1b[r"
"""All rows scroll. This moves the cursor."""
OFF_THE_LAST_ROW = "\x1bD\x1b[A"
"""Down and up again, in its column: on the last row that scrolls all others up, elsewhere it changes nothing."""


class StatusRow:
    """Draws a line, anew whenever it is told, until it is cleared.

    Nothing is drawn where the terminal is small or of another kind, and while this process is in its background.
    """

    def __init__(self, terminal: int) -> None:
        """Takes an open file, which need not be a terminal."""
        self._terminal = terminal
        self._drawn_at: os.terminal_size | None = None
        """Its size when the line was drawn; None where no line is there."""

    def draw(self, text: str) -> None:
        """Puts a text there, cut where it is too long.

        Raises:
            OSError: The terminal is gone.
        """
        size = os.get_terminal_size(self._terminal)
        if size.lines < FEWEST_ROWS or size.columns < FEWEST_COLUMNS or not self._is_ours():
            self.clear()
            return
        # anew each time: the terminal may have another size now, or somebody has reset it
        self._write(drawn(visible(text), size))
        self._drawn_at = size

    def clear(self) -> None:
        """Takes the line away, where there is one.

        Raises:
            OSError: The terminal is gone.
        """
        if self._drawn_at is None:
            return
        size = os.get_terminal_size(self._terminal)
        self._write(taken_away(size, before=self._drawn_at))
        self._drawn_at = None

    def _is_ours(self) -> bool:
        return os.tcgetpgrp(self._terminal) == os.getpgrp()

    def _write(self, text: str) -> None:
        os.write(self._terminal, text.encode("ascii", "replace"))


def drawn(text: str, size: os.terminal_size) -> str:
    """What puts a text into the last row of a terminal, whatever is there and wherever its cursor is."""
    return (f"{SAVE}{WHOLE}{RESTORE}{OFF_THE_LAST_ROW}"
            f"{SAVE}\x1b[1;{size.lines - 1}r{_emptied(size)}{text[:size.columns - 1]}{RESTORE}")


def taken_away(size: os.terminal_size, *, before: os.terminal_size) -> str:
    """What takes it away; with another size than before, something else may be in that row."""
    return f"{SAVE}{WHOLE}{_emptied(size) if size == before else ''}{RESTORE}"


def _emptied(size: os.terminal_size) -> str:
    return f"\x1b[{size.lines};1H\x1b[0m\x1b[2K"


def has_rows(terminal: int, environ: Mapping[str, str]) -> bool:
    """Whether a file is a terminal that can keep a row, as far as its environment shows."""
    family = environ.get("TERM", "").partition("-")[0]
    return os.isatty(terminal) and family in FAMILIES and environ["TERM"] != "xterm-color" and not any(
        name in environ for name in OTHERS)


def never_stopped() -> None:
    """The thread that calls this may write to a terminal from the background, to take its line away."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
