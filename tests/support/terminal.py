"""A terminal that a command runs on, and the screen that a user then sees."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import warnings
from collections.abc import Callable, Sequence

import pyte

from distprof.launch.display.status_row import OTHERS
from support.jobs import clean_environ

ROWS, COLUMNS = 24, 100


class Screen:
    """A screen with all that scrolled away."""

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
        """Of all that scrolled away and of the screen; without blank ones at the end."""
        gone = ["".join(line[column].data for column in range(self.screen.columns)) for line in self.screen.history.top]
        found = [line.rstrip() for line in (*gone, *self.screen.display)]
        while found and not found[-1]:
            found.pop()
        return found


def on_terminal_of_its_own(command: Sequence[object], watch: Callable[[str], object] = str) -> tuple[int, str]:
    """A command in a session of its own, whose terminal is its standard input, output and error.

    Args:
        command: Begins with the path of a program.
        watch: Called with what was written by then, whenever there is more.

    Returns:
        Its exit code, and all that was written to the terminal.
    """
    with warnings.catch_warnings(action="ignore"):  # threads of the tests do not matter to a process that runs another
        child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        words = [str(word) for word in command]
        environ = {name: value for name, value in clean_environ().items() if name not in OTHERS}
        os.execve(words[0], words, environ | {"TERM": "xterm-256color"})
    shown = bytearray()
    while part := _read(terminal):
        shown += part
        watch(shown.decode(errors="replace"))
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # EIO: nobody has it open any more
        return b""
