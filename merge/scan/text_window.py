"""The part of a text that is being scanned, as it slides along the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distprof.merge.scan.damage import AHEAD_BYTES

CHUNK_BYTES = 1 << 22
"""So much is added to the window at once, or more."""


class TextFeed:
    """A text that comes chunk by chunk, or straight into memory where its source has a `fill`, as `ChunkReader` has."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.num_bytes = 0
        """Text given so far."""
        self._fill: Callable[[memoryview], int] = getattr(chunks, "fill", lambda _: 0)
        self._chunks = iter(chunks)
        self._held = memoryview(b"")

    def next(self) -> bytes:
        """The next chunk; nothing at the end."""
        chunk = bytes(self._held) or next(self._chunks, b"")
        self._held = memoryview(b"")
        self.num_bytes += len(chunk)
        return chunk

    def fill(self, room: memoryview) -> int:
        """Puts text into memory, as much as is at hand; gives how much, which is nothing at the end only."""
        count = 0 if self._held else self._fill(room)
        if not count:
            self._held = self._held or memoryview(next(self._chunks, b""))
            count = min(len(room), len(self._held))
            room[:count] = self._held[:count]
            self._held = self._held[count:]
        self.num_bytes += count
        return count


class TextWindow:
    """The part of a text that is being scanned; it slides along the text in a buffer that stays."""

    def __init__(self, begin: bytes) -> None:
        self.text: Any = np.empty(max(2 * CHUNK_BYTES, 2 * len(begin)), np.uint8)
        self.end = len(begin)
        self.text[:self.end] = np.frombuffer(begin, np.uint8)

    def cut(self, start: int, end: int) -> bytes:
        """A copy of a part."""
        return bytes(self.text[start:min(end, self.end)])

    def slide(self, at: int, source: TextFeed) -> bool:
        """Drops what is before `at` and goes on; False where the text ends. An event longer than all makes it grow."""
        left = self.end - at
        self.text[:left] = self.text[at:self.end].copy() if left > at else self.text[at:self.end]
        self.end = left
        # where what is left is the beginning of one long event, scanning it again has to pay
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
        """Takes in `AHEAD_BYTES` from `at` on, if there are as many; gives the place where `at` is then."""
        if self.end - at >= AHEAD_BYTES:
            return at
        self.slide(at, source)
        return 0
