"""Where reading goes on behind damage in the array of events; damage.c says the same in C."""

from __future__ import annotations

import re

from distprof.merge.scan.json_values import skip, value_end
from distprof.merge.scan.scanned_columns import Text

AHEAD_BYTES = 1 << 12
"""So much text shows what stands behind damage."""
_BEGIN = re.compile(rb'\{[ \t\r\n]*+"(ph"[ \t\r\n]*+:)?')
"""An object, and whether it begins as most writers begin events."""
_BRACE = re.compile(rb'("ph"[ \t\r\n]*+:)|"[^"\\]*+(?:\\.[^"\\]*+)*+("|\Z)|[{}]', re.DOTALL)


def behind_damage(text: bytes, at: int) -> int | None:
    """Where reading goes on behind the damage at `at`; None where the text does not show it."""
    if len(text) - at < AHEAD_BYTES:
        return None
    num_bytes = element_bytes(text[at:at + AHEAD_BYTES])
    if num_bytes:
        return at + num_bytes
    found = next_event(text, at, len(text))
    return found if found is not None and len(text) - found >= AHEAD_BYTES else None


def next_event(text: Text, at: int, end: int) -> int | None:
    """Where an event seems to begin behind the damage at `at`.

    Such a one begins with its phase and is not the value of a key; or it stands behind another one and a comma, and has
    a phase.
    """
    for found in _BEGIN.finditer(text, at + 1, end):
        begin = found.start()
        before = _last_of(text, at, begin)
        if found[1]:
            if before is None or text[before] != ord(":"):
                return begin
            key = _last_of(text, at, before)
            if key is None or text[key] != ord('"'):
                return begin
        elif before is not None and text[before] == ord(","):
            other = _last_of(text, at, before)
            is_behind_one = other is not None and text[other] == ord("}")
            if is_behind_one and _has_phase(bytes(text[begin:min(begin + AHEAD_BYTES, end)])):
                return begin
    return None


def _last_of(text: Text, at: int, end: int) -> int | None:
    """The last place from `at` on and before `end` that is not blank; None where there is none."""
    while end > at:
        end -= 1
        if text[end] not in b" \t\r\n":
            return end
    return None


def _has_phase(text: bytes) -> bool:
    """Whether the object that the text begins with is an event, and not a part of one."""
    depth = 0
    for found in _BRACE.finditer(text):
        if found[1] and depth == 1:
            return True
        depth += {b"{": 1, b"}": -1}.get(found[0], 0)
        if depth <= 0:
            return False
    return False


def element_bytes(text: bytes) -> int:
    """Bytes of a whole value that is no object, at the beginning of the text, with the blanks behind it; else 0."""
    try:
        if text[0] == ord("{"):
            return 0
        place = skip(text, value_end(text, 0))
    except (ValueError, IndexError):
        return 0
    return place if text[place] in b",]" else 0
