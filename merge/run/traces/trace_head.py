"""Reads what stands around the events of a trace, or finds out what a file is if it is not a trace.

The head is read up to `traceEvents` and no further. Values after the events are read from the end of the file, or, if
it is compressed, by reading all of it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.json_values import object_of, short_members, value_end, value_of
from distprof.merge.scan.repair import is_in_ns
from distprof.merge.scan.text_window import TextFeed
from distprof.merge.scan.top_level_keys import EVENTS, TopLevelKeys

NODES = "nodes"
"""The key of the list in an execution trace."""
EXECUTION_TRACE = "an execution trace"
MERGED_TRACE = "a merged trace"
_PREFIXED = re.compile(rb'"pid"\s*:\s*"\[[^"\]]{1,64}\] ?\d')
"""Matches `"pid": "[TP00-DP01] 2848"`, as written by tools that combine traces of several ranks."""
_OF_CPU = re.compile(rb'"name"\s*:\s*"process_labels"[^{}]*?"pid"\s*:\s*(\d+)[^{}]*\{\s*"labels"\s*:\s*"CPU"')
"""Matches what Kineto writes once, before all other events."""
TAIL_BYTES = 4 << 20
LIST_BYTES = 1 << 16
"""Bytes read of a list: enough for its first event."""
END_OF_EVENTS = re.compile(rb'[}\[]\s*\]\s*(,)\s*"')
MOST_ENDS = 1000
"""How many possible ends of the list of events are tried: each try may read all that follows."""
KEPT = ("distributedInfo", "host_name", "deviceProperties", "distprof", "metadata")
"""Top-level keys whose values are read; the others may be large."""
_KEPT_KEY = re.compile(('"(' + "|".join(KEPT) + r')"\s*:\s*').encode())
SHOWN_KEYS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a file shows up to its first event."""

    instead: str | None
    """What the file is, in words, if it is not a Chrome trace; else None."""
    values: Mapping[str, Any]
    """Top-level values of a trace, by key, for the keys in `KEPT`."""
    is_damaged: bool = False
    """True if it could be a damaged trace."""
    in_ns: bool = False
    """True if its times can only be nanoseconds."""
    has_several: bool = False
    """True if its first events are of several ranks, because another tool merged them."""


_UNITS: list[str | None] = [None]
"""Units of times given by `times_in`; the last entry counts."""


@contextmanager
def times_in(unit: str) -> Iterator[None]:
    """Sets the unit of times in traces, `us` or `ns`, within the context; applies to the whole process."""
    _UNITS.append(unit)
    try:
        yield
    finally:
        _UNITS.pop()


def told_unit() -> str | None:
    """Returns the unit given by `times_in`; None outside of it."""
    return _UNITS[-1]


def read_head(reader: ChunkReader, *, through: bool) -> Head:
    """Reads a file only until it is clear what it is.

    Args:
        reader: A fresh reader, of any chunk size.
        through: Whether to read a compressed trace to its end if its head has no `distributedInfo`.

    Raises:
        DataError: It is empty, is not JSON, or cannot be opened.
    """
    feed = TextFeed(reader)
    keys = TopLevelKeys(feed)
    text = keys.read_until(EVENTS, NODES)
    values = {key: value for key, value in keys.values.items() if key in KEPT}
    instead = _instead(keys, text, feed)
    if instead is None and "distributedInfo" not in values:
        values = _after_events(_end(reader, text or b"", feed, through=through)) | values
    if instead is None and is_merged(values):
        instead = MERGED_TRACE
    begin = (text or b"")[:LIST_BYTES]
    return Head(instead=instead, values=values, is_damaged=keys.is_of_trace and (keys.is_cut or keys.lost_bytes > 0),
                in_ns=is_in_ns(begin) if told_unit() is None else told_unit() == "ns",
                has_several=_PREFIXED.search(begin) is not None or len({*_OF_CPU.findall(begin)}) > 1)


def is_merged(values: Mapping[str, Any]) -> bool:
    """Returns whether the top-level values are those of a trace that distprof merged."""
    about = values.get("metadata")
    return isinstance(about, dict) and isinstance(about.get("distprof"), dict)


def _instead(keys: TopLevelKeys, text: bytes | None, feed: TextFeed) -> str | None:
    if keys.is_array:
        return _list(text or b"", feed)
    if keys.stopped_at == NODES:
        return EXECUTION_TRACE if "schema" in keys.values else "JSON without traceEvents"
    if text is not None:
        return None
    shown = ", ".join(list(keys.values)[:SHOWN_KEYS]) + (", ..." if len(keys.values) > SHOWN_KEYS else "")
    if keys.is_of_trace and (keys.is_cut or keys.lost_bytes):
        return f"a trace that is {'cut off' if keys.is_cut else 'damaged'} before its first event"
    if keys.is_cut or keys.lost_bytes:
        return "damaged JSON, or a format without traceEvents"
    return f"JSON without traceEvents ({shown})" if shown else "an empty JSON object"


def _list(text: bytes, feed: TextFeed) -> str | None:
    """Classifies Chrome's other format: a list of events with nothing around it."""
    while len(text) < LIST_BYTES and (more := feed.next()):
        text += more
    is_trace = re.match(rb"[\s,]*\{", text) is not None and re.search(rb'"ph"\s*:\s*"', text) is not None
    return None if is_trace else "a JSON list without Chrome events"


def _end(reader: ChunkReader, text: bytes, feed: TextFeed, *, through: bool) -> bytes:
    """Returns the last text of a file; empty if that requires reading all of it, and `through` is False."""
    if reader.trace.member is None and not reader.is_compressed and reader.encoding is None:
        path = reader.trace.path
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - TAIL_BYTES, 0))
            return file.read()
    return _last(chain([text], iter(feed.next, b""))) if through and not reader.is_made else b""


def _last(chunks: Iterable[bytes]) -> bytes:
    held: deque[bytes] = deque()
    length = 0
    for chunk in chunks:
        held.append(chunk)
        length += len(chunk)
        while length - len(held[0]) >= TAIL_BYTES:
            length -= len(held.popleft())
    return b"".join(held)


def _after_events(end: bytes) -> dict[str, Any]:
    """Returns the values after the events: the comma becomes the brace of an object that ends with the file."""
    for number, match in enumerate(END_OF_EVENTS.finditer(end)):
        members = object_of(b"{" + end[match.end(1):]) if number < MOST_ENDS else None
        if members is not None:
            return {key: _value_or_parts(value) for key, value in members.items() if key in KEPT}
    return dict(_damaged_values(end))


def _damaged_values(end: bytes) -> Iterator[tuple[str, Any]]:
    """Yields the values of the keys in a text that as a whole is not JSON."""
    for match in list(_KEPT_KEY.finditer(end))[-len(KEPT):]:
        try:
            until = value_end(end, match.end())
        except (ValueError, IndexError):
            until = len(end)
        yield match[1].decode(), _value_or_parts(end[match.end():until])


def _value_or_parts(raw: bytes) -> Any:
    """Returns a value, or the short members of one that is damaged or nested too deeply."""
    try:
        return value_of(raw)
    except ValueError:
        return short_members(raw)
