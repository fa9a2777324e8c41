"""A window onto a text: chunks of bytes come in, the part that is being scanned goes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

CHUNK_BYTES = 1 << 21
"""So much is added to the window at once, or more."""
AHEAD_BYTES = 1 << 12
"""So much text is looked at to tell what stands behind damage."""


class Window:
    """The part of a text that is being scanned; it slides along the text in a buffer that stays."""

    def __init__(self, begin: bytes) -> None:
        self.text: Any = np.empty(max(2 * CHUNK_BYTES, 2 * len(begin)), np.uint8)
        self.end = 0
        self._append(begin)

    def cut(self, start: int, end: int) -> bytes:
        """A copy of a part."""
        return bytes(self.text[start:min(end, self.end)])

    def slide(self, at: int, source: Iterator[bytes]) -> bool:
        """Drops what is before `at` and goes on; False where the text ends. An event longer than all makes it grow."""
        left = self.end - at
        self.text[:left] = self.text[at:self.end].copy() if left > at else self.text[at:self.end]
        self.end = left
        # where what is left is the beginning of one long event, scanning it again has to pay
        wanted = self.end + max(CHUNK_BYTES, left)
        while self.end < wanted and (chunk := next(source, b"")):
            self._append(chunk)
        return self.end > left

    def look_ahead(self, at: int, source: Iterator[bytes]) -> int:
        """Takes in `AHEAD_BYTES` from `at` on, if there are as many; gives the place where `at` is then."""
        if self.end - at >= AHEAD_BYTES:
            return at
        self.slide(at, source)
        return 0

    def _append(self, chunk: bytes) -> None:
        end = self.end + len(chunk)
        if end > len(self.text):
            larger = np.empty(2 * end, np.uint8)
            larger[:self.end] = self.text[:self.end]
            self.text = larger
        self.text[self.end:end] = np.frombuffer(chunk, np.uint8)
        self.end = end
