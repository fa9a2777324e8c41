"""The one edge between distprof and a terminal: every line that it prints goes through `show`, `say`
or `relay`.

Names in traces, files, modules and messages of exceptions come from outside, and may hold characters that move the
cursor, set titles or turn the direction of writing. They are written as Python escapes, `\\x1b` or `\\u202e`, whether a
terminal reads them or a pipe. Secrets in them are not written at all.
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
"""Columns that no table needs."""
_ASCII = bytes(range(0x20, 0x7F))
_SUSPECT = re.compile(r"[^ -~]")
_SUSPECT_IN_LINES = re.compile(r"[^\n -~]")
_SUSPECT_IN_DRAWING = re.compile(r"\x1b\[[0-9;]*m|[^\n -~]")
_DRAWN = str.maketrans({"─": "-", "│": "|", "├": "|", "└": "`", "▁": "_", "▂": "_", "▃": ".", "▄": "-", "▅": "=",
                        "▆": "+", "▇": "*", "█": "#", "±": "+-"})
"""What trees, tables and curves are drawn with, for terminals that lack it."""


class Shown(str):
    """A text that is visible already, such as a page with our own colours; any other is made so before it is printed.

    What is made of it, such as a part or a sum, is a plain text again.
    """

    __slots__ = ()

    @classmethod
    def drawn(cls, text: str) -> Shown:
        """A text that was put together of visible pieces: colours and line ends in it are ours, nothing else is."""
        return cls(text if _is_plain(text, b"\n") else _SUSPECT_IN_DRAWING.sub(_escaped, text))


def visible(text: str) -> str:
    """The text in one line, with escapes for all that is neither seen nor a blank: controls, line ends, marks of
    direction, surrogates from file names that are not UTF-8.
    """
    return text if _is_plain(text, b"") else _SUSPECT.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """The same, with its line ends."""
    return text if _is_plain(text, b"\n") else _SUSPECT_IN_LINES.sub(_escaped, text)


def _is_plain(text: str, more: bytes) -> bool:
    """True where nothing can need an escape; quick, because JSON may be long."""
    return text.isascii() and not text.encode("ascii").translate(None, _ASCII + more)


def _escaped(found: re.Match[str]) -> str:
    character = found.group()
    if len(character) > 1:  # a colour
        return character
    if character.isprintable() or unicodedata.category(character) == "Zs":  # blanks of other scripts
        return character
    return repr(character)[1:-1]


def quoted(path: str | os.PathLike[str]) -> str:
    """A path as a shell takes it, in characters that can be seen: `runs/a`, `'my run'`, `$'a\\x1b[2J'`."""
    text = str(path)
    if WINDOWS:  # names have no controls there
        from subprocess import list2cmdline

        return list2cmdline([text])
    if visible(text) == text:
        return shlex.quote(text)
    return "$'" + "".join(map(_quoted_byte, os.fsencode(text))) + "'"


def quoted_all(paths: Iterable[str | os.PathLike[str]]) -> str:
    """Several paths as arguments of a command."""
    return " ".join(map(quoted, paths))


def _quoted_byte(byte: int) -> str:
    character = chr(byte)
    return f"\\{character}" if character in "\\'" else character if byte in _ASCII else f"\\x{byte:02x}"


def show(text: str) -> None:
    """Prints a result on standard output, with a line end.

    Raises:
        Ended: Nobody reads it.
        OSError: It cannot be written.
    """
    try:
        _write(sys.stdout, f"{text if isinstance(text, Shown) else visible_lines(text)}\n")
    except BrokenPipeError as error:
        raise Ended(SIGPIPE) from error


def say(message: str, *lines: str) -> None:
    """Prints `distprof: message` on standard error, with more lines below it, in one write: ranks share the stream.

    Never fails: a message that nobody can read stops no work.
    """
    text = "\n".join(map(visible, (f"distprof: {message}", *lines))) + "\n"
    with suppress(Exception):  # full, closed, or what the script put there raises
        _write(sys.stderr, text)


def relay(text: str) -> None:
    """Prints on standard error what another program has to say, in its own words. Never fails."""
    with suppress(Exception):
        _write(sys.stderr, f"{visible_lines(text)}\n")


def _write(stream: TextIO | None, text: str) -> None:
    """Writes all of a text, or raises an error."""
    if stream is None:  # closed when Python began
        return
    text = _encodable(hidden(text), getattr(stream, "encoding", None) or "utf-8")
    is_replaced = stream not in (sys.__stdout__, sys.__stderr__)
    if is_replaced or WINDOWS:  # by a script that logs in its own way; a console there takes text, not bytes
        stream.write(text)
        stream.flush()
        return
    stream.flush()
    # past the buffer: what it could not get rid of would be tried again when Python ends, which then exits with 120;
    # and where there is none (PYTHONUNBUFFERED), Python takes a part for the whole
    left = memoryview(text.encode(stream.encoding))
    while left:
        left = left[os.write(stream.fileno(), left):]


def _encodable(text: str, encoding: str) -> str:
    """The text in characters that a terminal has, escapes for all others."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_DRAWN).encode(encoding, "backslashreplace").decode(encoding)
    return text
