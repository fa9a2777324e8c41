"""The part of a text that is being scanned, which slides along the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distprof.merge.scan.damage import AHEAD_BYTES

CHUNK_BYTES = 1 << 22
"""Minimum number of bytes added to the window at once."""


class TextFeed:
    """A text that arrives chunk by chunk, or directly in memory if its source has a `fill` like `ChunkReader`."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.num_bytes = 0
        """Bytes of text returned so far."""
        self._fill: Callable[[memoryview], int] = getattr(chunks, "fill", lambda _: 0)
        self._chunks = iter(chunks)
        self._held = memoryview(b"")

    def next(self) -> bytes:
        """Returns the next chunk; empty at the end."""
        chunk = bytes(self._held) or next(self._chunks, b"")
        self._held = memoryview(b"")
        self.num_bytes += len(chunk)
        return chunk

    def fill(self, room: memoryview) -> int:
        """Copies available text into memory and returns the number of bytes, which is 0 only at the end."""
        count = 0 if self._held else self._fill(room)
        if not count:
            self._held = self._held or memoryview(next(self._chunks, b""))
            count = min(len(room), len(self._held))
            room[:count] = self._held[:count]
            self._held = self._held[count:]
        self.num_bytes += count
        return count


class TextWindow:
    """The part of a text that is being scanned; it slides along the text in one buffer."""

    def __init__(self, begin: bytes) -> None:
        self.text: Any = np.empty(max(2 * CHUNK_BYTES, 2 * len(begin)), np.uint8)
        self.end = len(begin)
        self.text[:self.end] = np.frombuffer(begin, np.uint8)

    def cut(self, start: int, end: int) -> bytes:
        """Returns a copy of a part."""
        return bytes(self.text[start:min(end, self.end)])

    def slide(self, at: int, source: TextFeed) -> bool:
        """Drops what precedes `at` and reads on; returns False if the text ends. The buffer grows for long events."""
        left = self.end - at
        self.text[:left] = self.text[at:self.end].copy() if left > at else self.text[at:self.end]
        self.end = left
        # if the rest is the beginning of one long event, scanning it again must be worth it
        wanted = self.end + max(CHUNK_BYTES, left)
        if wanted > len(self.text):
            larger = np.empty(2 * wanted, np.uint8)
            larger[:self.end] = self.text[:self.end]
            self.text = larger
        room = memoryview(self.text)
        while self.end < wanted and (count := source.fill(room[self.end:wanted])):
            self.end += count
        return self.end > left

    def look_ahead(self, at: int, source: TextFeed) -> int:
        """Reads until `AHEAD_BYTES` follow `at`, if the text has that many; returns the new place of `at`."""
        if self.end - at >= AHEAD_BYTES:
            return at
        self.slide(at, source)
        return 0
