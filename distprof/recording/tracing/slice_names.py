"""Names of our slices while Kineto has them: it calls a slice `unknown` that is not plain ASCII, and changes others.

`recorded_name` writes such names in ASCII; `real_names` gives the text that Kineto wrote the names that were meant, so
that nobody who reads a trace has to know of it.
"""

from __future__ import annotations

import json
import re
from typing import BinaryIO

from distprof.recording.tracing.raw_strings import strict

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
