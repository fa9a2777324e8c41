"""Names that scripts give to slices, threads and groups, in the JSON of the profiler, which does not escape them.

Kineto replaces slice names that are not plain ASCII by `unknown`, and changes others. `recorded_name` encodes such
names in ASCII for Kineto; `real_names` restores the original names in the text that Kineto wrote, so that readers of a
trace need not know of it.

`strict` escapes quotation marks in names of slices, threads and groups. A string ends at a quotation mark after which
JSON can continue; other quotation marks belong to the string. No string spans lines, so that damage is limited to its
line, and the name of a slice or thread is alone in its line.
"""

from __future__ import annotations

import json
import re
from typing import BinaryIO

_SOUND = re.compile(rb'(?:[^"]*+"[^"\\\n]*+"(?=[ \t]*(?:[,:}\]\r\n]|\Z)))*+[^"]*+')
"""Text whose strings contain no quotation marks."""
_NAME = re.compile(rb'\n([ \t\r]*+)"name": "([^"\n]*+"[^\n]*)"(?=,?[ \t\r]*(?:\n|\Z))')
"""A name that may contain a quotation mark, alone in its line; older versions of the profiler put more in the line."""
_VALUE = rb'(?:["\[{]|true|false|null|-?[0-9][-+.0-9eE]*[ \t]*(?:[,}\]]|\r?\Z))'
_AFTER_KEY = rb'"[ \t]*:[ \t]*' + _VALUE
_CLOSED = rb'"[ \t]*(?:\r?\Z|[}\]][ \t]*(?:[,}\]]|\r?\Z)|,[ \t]*(?:\r?\Z|%s))'
_ENDS_VALUE = re.compile(_CLOSED % (rb'"[^"]*' + _AFTER_KEY))
"""After it, a member of an object follows, or nothing in this line."""
_ENDS_OTHER = re.compile(_AFTER_KEY + rb"|" + _CLOSED % _VALUE)
"""After it, a value follows: that of the key that it ends, or the next one in a list."""
_OWN = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|(["\\])')
_VALUE_BEGINS = re.compile(rb":[ \t]*\Z")


def strict(text: bytes) -> bytes:
    """Returns the text with all quotation marks and backslashes that are part of strings escaped."""
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
    """Returns the end of the string that begins there; the last quotation mark if none looks like an end."""
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
"""Characters that Kineto does not write unchanged, and those with which escapes begin."""
_MARKED = re.compile(rb'"%s([^"]*)"' % MARK.encode())
_ESCAPE = re.compile(r"~([0-9a-f]{1,6})~")
BLOCK_BYTES = 1 << 20
LONGEST = 1 << 16
"""Maximum number of bytes of a name that may span two blocks."""


def recorded_name(name: str) -> str:
    """Returns the name of a slice in a form that Kineto keeps."""
    is_plain = name.isascii() and name.isprintable() and not name.startswith(MARK)
    if is_plain and '"' not in name and "\\" not in name:
        return name
    whole = name.encode("utf-8", "backslashreplace").decode()  # halves of surrogate pairs are not text
    return MARK + _CHANGED.sub(lambda found: f"~{ord(found.group()):x}~", whole)


def real_names(text: bytes) -> bytes:
    """Returns the JSON with the original names in place of those from `recorded_name`."""
    return _MARKED.sub(_real, text) if MARK.encode() in text else text


def copy_with_real_names(source: BinaryIO, target: BinaryIO) -> None:
    """Copies a file of any size, with original names and as strict JSON."""
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
    # Perfetto shows escapes as they are: printable letters of all scripts are written as such, others are escaped
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text).encode()


def _character(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    return chr(number) if number < 0x110000 else found.group()
