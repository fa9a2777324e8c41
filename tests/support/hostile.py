"""Names that would move a cursor, set a title, change the writing direction or forge a line, and checks of output."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from support import forked
from support.jobs import PATIENCE_S, clean_environ

FORGED = "distprof: forged"
MARKS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Unicode's Bidi_Control."""
NAME = f"a\x1b[2J\x1b]0;title\x07\b\r\x7f\x85\x9b31m{MARKS}\u2028\u2029\ufeff\n{FORGED}\tz"
"""A hostile name in valid UTF-8."""
FILE_NAME = os.fsdecode(b"b\x1b[31m\x1b]2;t\x07\r\n" + FORGED.encode() + b"\xff\xc3" + MARKS.encode())
"""A hostile file name that is not UTF-8."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def judge(shown: bytes, *, terminal: bool = False) -> str:
    """Fails if output has control characters other than newlines and, on a terminal, colours; returns the text without
    colours.

    Also fails if it has a line that a name has forged.
    """
    text = judge_characters(shown, terminal=terminal)
    assert not any(line.lstrip("│├└─ ").startswith(FORGED) for line in text.split("\n")), text
    return text


def judge_characters(shown: bytes, *, terminal: bool = False) -> str:
    """Like `judge`, but does not check for forged lines."""
    text = shown.decode("utf-8", "strict")
    text = COLOUR.sub("", text) if terminal else text
    controls = {*map(chr, (*range(0x20), *range(0x7F, 0xA0))), *MARKS, "\u2028", "\u2029", "\ufeff"} - {"\n"}
    assert not controls & set(text), (controls & set(text), text)
    return text


def piped(*arguments: object, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a command with pipes for its output."""
    return forked.run(_command(arguments), capture_output=True, timeout=PATIENCE_S, check=False,
                      env=clean_environ() | environ)


def on_terminal(*arguments: object, **environ: str) -> tuple[int, bytes]:
    """Runs a command on a terminal; returns its exit code and all its output."""
    ours, theirs = pty.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # keeps newlines as written
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    command = subprocess.Popen(_command(arguments), stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True,
                               env=_with_terminal(clean_environ() | environ))
    os.close(theirs)
    shown = bytearray()
    with suppress(OSError):  # EIO: no process has the terminal open any more
        while part := os.read(ours, 1 << 16):
            shown += part
    os.close(ours)
    return command.wait(PATIENCE_S), bytes(shown)


def _with_terminal(environ: Mapping[str, str]) -> dict[str, str]:
    left_out = ("NO_COLOR", "FORCE_COLOR", "COLORTERM")
    return {**{key: value for key, value in environ.items() if key not in left_out}, "TERM": "xterm-256color"}


def _command(arguments: Sequence[object]) -> list[str | Path]:
    return [sys.executable, "-m", "distprof", *(one if isinstance(one, Path) else str(one) for one in arguments)]
