"""Reads what stands around the events of a trace, or what a file is if it is no trace.

The head is read up to `traceEvents` and no further. Values after the events are read from the end of a file, or by
going through all of it where it is compressed.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.trace_file import is_gzip

HEAD_BYTES = 32 << 20
"""Events that begin later are not found; process groups of thousands of ranks take megabytes."""
TAIL_BYTES = 4 << 20
LIST_BYTES = 1 << 16
"""Of a list: enough for its first event."""
EVENTS = re.compile(rb'"(traceEvents|nodes)"\s*:\s*\[')
END_OF_EVENTS = re.compile(rb'[}\[]\s*\]\s*(,)\s*"')
OVERLAP = 64
"""Bytes that are searched again: a key may lie across two chunks."""
KEPT = ("distributedInfo", "host_name", "deviceProperties", "distprof", "metadata")
"""Values that are looked at; the others may be large."""
SHOWN_KEYS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A file as far as its first event."""

    instead: str | None
    """What it is, in words, where it is no Chrome trace."""
    values: Mapping[str, Any]
    """Top-level values of a trace, by key; only those in `KEPT`."""
    cut: bool = False
    """True where it would be a trace if it went on."""


def read_head(reader: ChunkReader, *, through: bool) -> Head:
    """Reads a file only until it is clear what it is.

    Args:
        reader: Fresh, of any chunk size.
        through: True to read a compressed trace to its end where its head has no `distributedInfo`.

    Raises:
        DataError: It is empty, is no JSON, or cannot be opened.
    """
    chunks, text = iter(reader), bytearray()
    head = _head(chunks, text)
    if head.instead is not None or "distributedInfo" in head.values:
        return head
    if reader.trace.member is None and not is_gzip(reader.trace.path):
        after = _end_of_file(reader)
    elif through:
        after = _last(chain([bytes(text)], chunks))
    else:
        return head
    return Head(instead=None, values={**_kept(_after_events(after)), **head.values})


def _head(chunks: Iterator[bytes], text: bytearray) -> Head:
    """Reads chunks into `text` until it is clear."""
    searched, first = 0, b""
    for chunk in chunks:
        text += chunk
        first = first or bytes(text.lstrip()[:1])
        if first == b"[":
            if len(text) >= LIST_BYTES:
                break
            continue
        for match in EVENTS.finditer(text, max(searched - OVERLAP, 0)):
            values = _object(bytes(text[:match.start()]))
            if values is not None:
                return _of(match[1], values)
        searched = len(text)
        if searched > HEAD_BYTES:
            return Head(instead=f"JSON without traceEvents in its first {HEAD_BYTES >> 20} MB", values={})
    return _list(bytes(text)) if first == b"[" else _without_events(bytes(text))


def _of(key: bytes, values: Mapping[str, Any]) -> Head:
    if key == b"nodes":
        return Head(instead="an execution trace" if "schema" in values else "JSON without traceEvents", values={})
    kept = _kept(values)
    made_here = isinstance(kept.get("metadata"), dict) and "distprof" in kept["metadata"]
    return Head(instead="a merged trace" if made_here else None, values=kept)


def _list(text: bytes) -> Head:
    """Chrome's other form: a list of events and nothing around it."""
    is_trace = re.match(rb'\s*\[\s*\{', text) is not None and re.search(rb'"ph"\s*:\s*"', text) is not None
    return Head(instead=None if is_trace else "a JSON list without Chrome events", values={})


def _without_events(text: bytes) -> Head:
    values = _decode(text)
    if values is not None:
        keys = ", ".join(list(values)[:SHOWN_KEYS]) + (", ..." if len(values) > SHOWN_KEYS else "")
        return Head(instead=f"JSON without traceEvents ({keys})" if values else "an empty JSON object", values={})
    if b'"schemaVersion"' in text or b'"deviceProperties"' in text:
        return Head(instead="a trace that is cut before its first event", values={}, cut=True)
    return Head(instead="damaged JSON, or another format, without traceEvents", values={})


def _object(start: bytes) -> dict[str, Any] | None:
    """The object that `start` begins, closed where `start` ends; None where that is not at its top level."""
    return _decode(start.rstrip().removesuffix(b",") + b"}")


def _decode(text: bytes | memoryview) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:  # NaN and bytes that are no UTF-8, which Kineto has written
        found = json.loads(bytes(text).decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
            for key, value in values.items() if key in KEPT}


def _end_of_file(reader: ChunkReader) -> bytes:
    path = reader.trace.path
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - TAIL_BYTES, 0))
        return file.read()


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
    """The values behind the events. The comma after them becomes the brace of an object that ends with the file."""
    text = bytearray(end)
    for match in END_OF_EVENTS.finditer(end):
        comma = match.start(1)
        text[comma] = ord("{")
        try:
            return msgspec.json.decode(memoryview(text)[comma:], type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            text[comma] = ord(",")
    return {}
