"""Names that would move a cursor, set a title, turn the direction of writing or forge a line, and who judges a text."""

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
"""In every place that UTF-8 can fill."""
FILE_NAME = os.fsdecode(b"b\x1b[31m\x1b]2;t\x07\r\n" + FORGED.encode() + b"\xff\xc3" + MARKS.encode())
"""In every place that a file system knows: not UTF-8."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def judge(shown: bytes, *, terminal: bool = False) -> str:
    """Fails where the bytes hold a control but line ends and, on a terminal, colours; returns the text without these.

    A line that a name has forged fails too.
    """
    text = judge_characters(shown, terminal=terminal)
    assert not any(line.lstrip("│├└─ ").startswith(FORGED) for line in text.split("\n")), text
    return text


def judge_characters(shown: bytes, *, terminal: bool = False) -> str:
    """The same for texts of several lines."""
    text = shown.decode("utf-8", "strict")
    text = COLOUR.sub("", text) if terminal else text
    controls = {*map(chr, (*range(0x20), *range(0x7F, 0xA0))), *MARKS, "\u2028", "\u2029", "\ufeff"} - {"\n"}
    assert not controls & set(text), (controls & set(text), text)
    return text


def piped(*arguments: object, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """A command whose output goes to pipes."""
    return forked.run(_command(arguments), capture_output=True, timeout=PATIENCE_S, check=False,
                      env=clean_environ() | environ)


def on_terminal(*arguments: object, **environ: str) -> tuple[int, bytes]:
    """A command whose output and errors go to a terminal: its exit code and all that a user gets."""
    ours, theirs = pty.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # line ends as they are written
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    command = subprocess.Popen(_command(arguments), stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True,
                               env=_with_terminal(clean_environ() | environ))
    os.close(theirs)
    shown = bytearray()
    with suppress(OSError):  # EIO: nobody has it open any more
        while part := os.read(ours, 1 << 16):
            shown += part
    os.close(ours)
    return command.wait(PATIENCE_S), bytes(shown)


def _with_terminal(environ: Mapping[str, str]) -> dict[str, str]:
    left_out = ("NO_COLOR", "FORCE_COLOR", "COLORTERM")
    return {**{key: value for key, value in environ.items() if key not in left_out}, "TERM": "xterm-256color"}


def _command(arguments: Sequence[object]) -> list[str | Path]:
    return [sys.executable, "-m", "distprof", *(one if isinstance(one, Path) else str(one) for one in arguments)]
