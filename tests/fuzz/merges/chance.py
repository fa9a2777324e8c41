"""Random choices out of bytes, so that a fuzzer which changes bytes changes choices."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

Value = TypeVar("Value")


class Chance(random.Random):
    """Takes its bits out of bytes; behind their end, out of their checksum."""

    def __init__(self, given: bytes) -> None:
        self._given, self._at = b"", 0
        super().__init__(zlib.crc32(given))
        self._given = given

    def getrandbits(self, k: int, /) -> int:
        """See `random.Random`."""
        end = self._at + (k + 7) // 8
        if end > len(self._given):
            return super().getrandbits(k)
        bits = int.from_bytes(self._given[self._at:end], "little")
        self._at = end
        return bits & ((1 << k) - 1)

    def random(self) -> float:
        """See `random.Random`."""
        return self.getrandbits(32) / 2**32

    def one_in(self, count: int) -> bool:
        """True once in so many times."""
        return self.randrange(count) == 0

    def call(self, ways: Sequence[Callable[..., Value]], *arguments: object) -> Value:
        """What one of the functions gives."""
        return self.choice(ways)(*arguments)
