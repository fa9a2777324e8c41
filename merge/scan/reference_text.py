"""Events with other numbers: an event's text and the places in it come in, pieces of the new text go out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from distprof.merge.scan.json_text import integer, key_end, skip_blank, unquoted, value_end
from distprof.merge.scan.rows import (
    ARGS,
    BIND_ID,
    DUR,
    GLOBAL,
    ID,
    ID2,
    IDS_FOR_SMALL,
    LINKED,
    NO_ARROW,
    NONE,
    PID,
    SCOPE,
    TID,
    TS,
)

IS_LINKED = np.isin(np.arange(256), np.frombuffer(LINKED, np.uint8))
"""By phase."""


class Numbers(Protocol):
    """Gives numbers to texts."""

    def number(self, text: str) -> int:
        """Equal for equal texts."""


def link(ids: Numbers, text: str, first: int) -> int:
    """The number for an id: its own value beside the rank's where it is a small one, else one given out in order."""
    text = unquoted(text)
    value = NONE if text.startswith("-") else integer(text)
    return first + (value if NONE != value < IDS_FOR_SMALL else IDS_FOR_SMALL + ids.number(text))


def rewritten(part: bytes, begin: int, row: tuple[Any, ...], ids: Numbers, first_id: int) -> Iterator[bytes]:
    """The text of an event with other numbers.

    Args:
        part: Text, from byte `begin` of the whole on.
        begin: See `part`.
        row: Start, end, phase, flags and spans of the event, how it is kept, and its new pid, tid, ts, dur and id.
        ids: Takes in ids that are no small numbers.
        first_id: Added to every id.
    """
    start, end, phase, flags, spans, keep, pid, tid, ts_ns, dur_ns, number = row
    new = {PID: b"%d" % pid, TID: b"%d" % tid}
    if ts_ns != NONE:
        new[TS] = _microseconds(ts_ns)
    if dur_ns != NONE:
        new[DUR] = _microseconds(dur_ns)
    if flags & GLOBAL:
        new[SCOPE] = b'"p"'
    at = start - begin
    for place, length, field in sorted((*span, field) for field, span in enumerate(spans[:ARGS]) if span[1]):
        place -= begin
        old = part[place:place + length].decode("latin-1")
        if field == BIND_ID and keep == NO_ARROW:
            new[field] = b"null"
        elif field == BIND_ID or (field == ID and IS_LINKED[phase]):
            new[field] = b"%d" % (link(ids, old, first_id) if number == NONE else number)
        elif field == ID2 and (inner := _global_id(old)):
            place, length = place + inner[0], inner[1] - inner[0]
            new[field] = b'"%d"' % link(ids, old[slice(*inner)], first_id)
        if field in new:
            yield part[at:place]
            yield new[field]
            at = place + length
    rest = part[at:end - begin]
    added = [b'"%s":%s' % (key, new[field]) for field, key in ((PID, b"pid"), (TID, b"tid"), (DUR, b"dur"))
             if not spans[field][1] and field in new]
    if added:  # a process, a thread, the duration of a slice have to be there
        before = rest[:-1]
        rest = before + (b"" if before.rstrip(b" \n\t\r").endswith(b"{") else b",") + b",".join(added) + b"}"
    yield rest


def _global_id(text: str) -> tuple[int, int] | None:
    """Where the id stands that an `id2` shares with all processes; None where it is of one process alone."""
    at = 0
    while text[0] == "{" and text[at] != "}":
        at = skip_blank(text, at + 1)
        if text[at] != '"':
            break
        stop, value, _ = key_end(text, at)
        value = skip_blank(text, value)
        end, _ = value_end(text, value)
        if text[at + 1:stop - 1] == "global":
            return value, end
        at = skip_blank(text, end)
    return None


def _microseconds(ns: int) -> bytes:
    return (b"-" if ns < 0 else b"") + b"%d.%03d" % divmod(abs(ns), 1000)
