"""All output of distprof: every line that it prints goes through `show`, `say` or `relay`.

Names in traces, files, modules and messages of exceptions come from outside, and may have characters that move the
cursor, set titles or change the direction of writing. They are written as Python escapes, `\\x1b` or `\\u202e`, to
terminals as well as pipes. Secrets in them are replaced.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO

from distprof.errors import Ended
from distprof.hidden import hidden
from distprof.system import SIGPIPE, WINDOWS

WIDE = 10_000
"""More columns than any table needs."""
_ASCII = bytes(range(0x20, 0x7F))
_SUSPECT = re.compile(r"[^ -~]")
_SUSPECT_IN_LINES = re.compile(r"[^\n -~]")
_SUSPECT_IN_DRAWING = re.compile(r"\x1b\[[0-9;]*m|[^\n -~]")
_DRAWN = str.maketrans({"─": "-", "│": "|", "├": "|", "└": "`", "▁": "_", "▂": "_", "▃": ".", "▄": "-", "▅": "=",
                        "▆": "+", "▇": "*", "█": "#", "±": "+-"})
"""Replacements for characters of trees, tables and curves, for encodings that lack them."""


class Shown(str):
    """A text that is safe to print as it is, such as a page with distprof's colours; other texts are escaped first.

    Texts derived from it, such as slices or sums, are ordinary texts again.
    """

    __slots__ = ()

    @classmethod
    def drawn(cls, text: str) -> Shown:
        """Returns a text made of safe pieces: keeps colours and newlines, which are ours, and escapes the rest."""
        return cls(text if _is_plain(text, b"\n") else _SUSPECT_IN_DRAWING.sub(_escaped, text))


def visible(text: str) -> str:
    """Returns the text in one line, with escapes for everything invisible except blanks: control characters, newlines,
    direction marks, surrogates from file names that are not UTF-8."""
    return text if _is_plain(text, b"") else _SUSPECT.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """Returns the text like `visible`, but keeps newlines."""
    return text if _is_plain(text, b"\n") else _SUSPECT_IN_LINES.sub(_escaped, text)


def _is_plain(text: str, more: bytes) -> bool:
    """Returns whether the text certainly needs no escape; fast, because JSON may be long."""
    return text.isascii() and not text.encode("ascii").translate(None, _ASCII + more)


def _escaped(found: re.Match[str]) -> str:
    character = found.group()
    if len(character) > 1:  # a colour sequence
        return character
    if character.isprintable() or unicodedata.category(character) == "Zs":  # any Unicode blank
        return character
    return repr(character)[1:-1]


def quoted(path: str | os.PathLike[str]) -> str:
    """Returns a path quoted for a shell, with visible characters only: `runs/a`, `'my run'`, `$'a\\x1b[2J'`."""
    text = str(path)
    if WINDOWS:  # names cannot have control characters there
        from subprocess import list2cmdline

        return list2cmdline([text])
    if visible(text) == text:
        return shlex.quote(text)
    return "$'" + "".join(map(_quoted_byte, os.fsencode(text))) + "'"


def quoted_all(paths: Iterable[str | os.PathLike[str]]) -> str:
    """Returns several paths as arguments of a command."""
    return " ".join(map(quoted, paths))


def _quoted_byte(byte: int) -> str:
    character = chr(byte)
    return f"\\{character}" if character in "\\'" else character if byte in _ASCII else f"\\x{byte:02x}"


def show(text: str) -> None:
    """Prints a result to standard output, with a newline.

    Raises:
        Ended: The reader closed the pipe.
        OSError: It cannot be written.
    """
    try:
        _write(sys.stdout, f"{text if isinstance(text, Shown) else visible_lines(text)}\n")
    except BrokenPipeError as error:
        raise Ended(SIGPIPE) from error


def say(message: str, *lines: str) -> None:
    """Prints `distprof: message` to standard error, then more lines, in one write because ranks share the stream.

    Never raises, because a message must not stop the work.
    """
    text = "\n".join(map(visible, (f"distprof: {message}", *lines))) + "\n"
    with suppress(Exception):  # full, closed, or replaced by an object of the script that raises
        _write(sys.stderr, text)


def relay(text: str) -> None:
    """Prints the output of another program to standard error, without the prefix. Never raises."""
    with suppress(Exception):
        _write(sys.stderr, f"{visible_lines(text)}\n")


def _write(stream: TextIO | None, text: str) -> None:
    """Writes a whole text, or raises an error."""
    if stream is None:  # closed when Python started
        return
    text = _encodable(hidden(text), getattr(stream, "encoding", None) or "utf-8")
    is_replaced = stream not in (sys.__stdout__, sys.__stderr__)
    if is_replaced or WINDOWS:  # replaced by the script; on Windows, a console accepts text, not bytes
        stream.write(text)
        stream.flush()
        return
    stream.flush()
    # bypasses the buffer: Python would retry unwritten data at exit and end with code 120, and without a buffer
    # (PYTHONUNBUFFERED) it would treat a partial write as complete
    left = memoryview(text.encode(stream.encoding))
    while left:
        left = left[os.write(stream.fileno(), left):]


def _encodable(text: str, encoding: str) -> str:
    """Returns the text with replacements or escapes for characters that the encoding lacks."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_DRAWN).encode(encoding, "backslashreplace").decode(encoding)
    return text
