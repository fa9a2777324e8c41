"""Runs a command on a terminal, and emulates the screen that a user sees."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Callable

import pyte

from distprof.launch.job_progress import OTHERS
from support import forked
from support.jobs import clean_environ

ROWS, COLUMNS = 24, 100


class Screen:
    """A screen with its scrollback."""

    def __init__(self, rows: int = ROWS, columns: int = COLUMNS) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=100_000, ratio=0.5)
        self._stream = pyte.Stream(self.screen)

    def feed(self, text: str) -> None:
        self._stream.feed(text)

    @property
    def last_row(self) -> str:
        return self.screen.display[-1].rstrip()

    @property
    def lines(self) -> list[str]:
        """Lines of scrollback and screen, without blank lines at the end."""
        gone = ["".join(line[column].data for column in range(self.screen.columns)) for line in self.screen.history.top]
        found = [line.rstrip() for line in (*gone, *self.screen.display)]
        while found and not found[-1]:
            found.pop()
        return found


TAKES_IT = ("import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            "from distprof.launch.cli import main; main(sys.argv[1:])")


def on_terminal_of_its_own(*words: object, watch: Callable[[str], object] = str) -> tuple[int, str]:
    """Runs the command line in a new session with a terminal as its standard input, output and error.

    Args:
        words: Arguments of `distprof`.
        watch: Called with the whole output so far, whenever there is more.

    Returns:
        The exit code, and all output to the terminal.
    """
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environ = {name: value for name, value in clean_environ().items() if name not in OTHERS}
    with forked.popen([sys.executable, "-c", TAKES_IT, *map(str, words)], env=environ | {"TERM": "xterm-256color"},
                      stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True) as process:
        os.close(terminal)
        shown = bytearray()
        while part := _read(ours):
            shown += part
            watch(shown.decode(errors="replace"))
        os.close(ours)
    return process.returncode, shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # EIO: no process has the terminal open any more
        return b""
