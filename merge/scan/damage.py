"""Where reading goes on behind damage in the array of events."""

from __future__ import annotations

import re

from distprof.merge.scan.text_window import AHEAD_BYTES, TextWindow
from distprof.merge.scan.top_level_keys import BLANK, DECODER, skip

_BEGIN = re.compile(rb'\{[ \t\r\n]*"(ph"[ \t\r\n]*:)?')
"""An object, and whether it begins as most writers begin events."""
_BRACE = re.compile(rb'("ph"[ \t\r\n]*:)|"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)
_ELEMENT = re.compile(rb'((?:"(?:[^"\\]|\\.)*"|[^\s{}\[\]",:]+)\s*)[,\]]', re.DOTALL)
"""Strings, numbers and words in the array of events."""


def next_event(window: TextWindow, at: int) -> int | None:
    """Where behind `at` an event seems to begin: behind another one and a comma, or with its phase."""
    for found in _BEGIN.finditer(window.text, at + 1, window.end):
        before = window.cut(max(at, found.start() - 256, 0), found.start()).rstrip()
        follows = before.endswith(b",") and before[:-1].rstrip().endswith(b"}")
        if found[1] or (follows and _has_phase(window.cut(found.start(), found.start() + AHEAD_BYTES))):
            return found.start()
    return None


def _has_phase(text: bytes) -> bool:
    """Whether the object that the text begins with is an event, and not a part of one."""
    depth = 0
    for found in _BRACE.finditer(text):
        if found[1] and depth == 1:
            return True
        depth += {b"{": 1, b"}": -1}.get(found[0], 0)
        if not depth:
            return False
    return False


def element_bytes(text: bytes) -> int:
    """Bytes of a whole value that is no object, at the beginning of the text; 0 where there is none."""
    element = _ELEMENT.match(text)
    if element is not None:
        return element.end(1)
    view = text.decode("latin-1")
    try:
        place = skip(view, 0, BLANK)
        place = skip(view, DECODER.raw_decode(view, place)[1], BLANK) if view[place] == "[" else 0
    except (ValueError, IndexError, RecursionError):
        return 0
    return place if view[place] in ",]" else 0
