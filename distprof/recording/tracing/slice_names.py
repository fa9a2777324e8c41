"""Names that scripts give to slices, threads and groups, in the JSON of a profiler that is not made for all of them.

Names of our slices while Kineto has them: it calls a slice `unknown` that is not plain ASCII, and changes others.
`recorded_name` writes such names in ASCII; `real_names` gives the text that Kineto wrote the names that were meant, so
that nobody who reads a trace has to know of it.

JSON of the profiler, which writes what scripts name as it is: quotation marks of slices, threads and groups. A string
ends at a quotation mark behind which JSON can go on; the others are its own. No string spans lines, so that damage
stays in its line, and the name of a slice or thread has a line to itself.
"""

from __future__ import annotations

import json
import re
from typing import BinaryIO

_SOUND = re.compile(rb'(?:[^"]*+"[^"\\\n]*+"(?=[ \t]*(?:[,:}\]\r\n]|\Z)))*+[^"]*+')
"""Text whose strings have no quotation marks in them."""
_NAME = re.compile(rb'\n([ \t\r]*+)"name": "([^"\n]*+"[^\n]*)"(?=,?[ \t\r]*(?:\n|\Z))')
"""A name that may have a quotation mark in it, alone in its line; older versions of the profiler write more there."""
_VALUE = rb'(?:["\[{]|true|false|null|-?[0-9][-+.0-9eE]*[ \t]*(?:[,}\]]|\r?\Z))'
_AFTER_KEY = rb'"[ \t]*:[ \t]*' + _VALUE
_CLOSED = rb'"[ \t]*(?:\r?\Z|[}\]][ \t]*(?:[,}\]]|\r?\Z)|,[ \t]*(?:\r?\Z|%s))'
_ENDS_VALUE = re.compile(_CLOSED % (rb'"[^"]*' + _AFTER_KEY))
"""Behind it a member of an object follows, or nothing in this line."""
_ENDS_OTHER = re.compile(_AFTER_KEY + rb"|" + _CLOSED % _VALUE)
"""Behind it a value follows: of the key that it ends, or in a list."""
_OWN = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|(["\\])')
_VALUE_BEGINS = re.compile(rb":[ \t]*\Z")


def strict(text: bytes) -> bytes:
    """The text with each quotation mark and backslash escaped that is part of a string."""
    text = _NAME.sub(_strict_name, text)
    found, at = list[bytes](), 0
    while (sound := _SOUND.match(text, at)) is not None and (odd := sound.end()) < len(text):
        begin, end = text.rfind(b"\n", 0, odd) + 1, text.find(b"\n", odd)
        end = len(text) if end < 0 else end
        found += [text[at:begin], _strict_line(text[begin:end])]
        at = end
    return b"".join((*found, text[at:])) if found else text


def _strict_name(found: re.Match[bytes]) -> bytes:
    return b'\n%s"name": "%s"' % (found[1], _OWN.sub(_escaped, found[2]))


def _strict_line(line: bytes) -> bytes:
    found, at = list[bytes](), 0
    while (begin := line.find(b'"', at)) >= 0:
        is_value = _VALUE_BEGINS.search(line, at, begin) is not None
        end = _end_of(line, begin, _ENDS_VALUE if is_value else _ENDS_OTHER)
        found += [line[at:begin + 1], _OWN.sub(_escaped, line[begin + 1:end]), line[end:end + 1]]
        at = end + 1
    return b"".join((*found, line[at:]))


def _end_of(line: bytes, begin: int, ends: re.Pattern[bytes]) -> int:
    """Where the string ends that begins there; at the last quotation mark, where none is like an end."""
    at = last = begin
    while (at := line.find(b'"', at + 1)) >= 0:
        last = at
        before = line[begin + 1:at]
        is_escaped = (len(before) - len(before.rstrip(b"\\"))) % 2 == 1
        if not is_escaped and ends.match(line, at):
            return at
    return last if last > begin else len(line)


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"\\" + found[1] if found[1] else found[0]


MARK = "~distprof~"
_CHANGED = re.compile(r'[^ -~]|["\\~]')
"""What Kineto does not write as it is, and what escapes begin with."""
_MARKED = re.compile(rb'"%s([^"]*)"' % MARK.encode())
_ESCAPE = re.compile(r"~([0-9a-f]{1,6})~")
BLOCK_BYTES = 1 << 20
LONGEST = 1 << 16
"""Bytes of a name that may lie on the border of two blocks."""


def recorded_name(name: str) -> str:
    """The name of a slice as Kineto takes it."""
    is_plain = name.isascii() and name.isprintable() and not name.startswith(MARK)
    if is_plain and '"' not in name and "\\" not in name:
        return name
    whole = name.encode("utf-8", "backslashreplace").decode()  # halves of surrogate pairs are no text
    return MARK + _CHANGED.sub(lambda found: f"~{ord(found.group()):x}~", whole)


def real_names(text: bytes) -> bytes:
    """JSON in which such names, and no others, are those that were meant."""
    return _MARKED.sub(_real, text) if MARK.encode() in text else text


def copy_with_real_names(source: BinaryIO, target: BinaryIO) -> None:
    """The same as strict JSON, of a file of any size."""
    kept = b""
    while block := source.read(BLOCK_BYTES):
        whole = kept + block
        border = max(0, whole.rfind(b"\n"), len(whole) - LONGEST)  # names do not span lines
        target.write(strict(real_names(whole[:border])))
        kept = whole[border:]
    target.write(strict(real_names(kept)))


def _real(found: re.Match[bytes]) -> bytes:
    name = _ESCAPE.sub(_character, found[1].decode("utf-8", "replace"))
    text = json.dumps(name, ensure_ascii=False)
    # Perfetto shows escapes as they are: letters of all scripts are written as such, and nothing that cannot be seen
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text).encode()


def _character(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    return chr(number) if number < 0x110000 else found.group()
