"""The threads that a trace names, with one number for all spellings of a thread."""

from __future__ import annotations

from sys import intern
from typing import Any

import numpy as np

from distprof.arrays import Array
from distprof.merge.scan.engine import Interner
from distprof.merge.scan.thread_ids import thread_of


class RawThreads:
    """Threads by the numbers that the scanner gives to them."""

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self.names: list[tuple[str, str]] = []
        """Process and thread of each number."""
        self._first: dict[tuple[str, str], int] = {}
        self._numbers: Any = np.empty(0, np.int32)

    def look(self) -> None:
        """Takes in the threads that are new."""
        known = len(self.names)
        if len(self._interner) == known:
            return
        for text in self._interner.texts(known):
            pid, tid = thread_of(text)
            self.names.append((intern(pid), intern(tid)))
        new = [self._first.setdefault(name, number) for number, name in enumerate(self.names[known:], known)]
        if len(self.names) > len(self._numbers):
            self._numbers = np.resize(self._numbers, 2 * len(self.names))
        self._numbers[known:len(self.names)] = new

    def same(self, numbers: Array) -> Array:
        """The numbers of rows, with one for all spellings of a thread: 7 and "7" are written as the same."""
        return numbers if len(self._first) == len(self.names) else self._numbers.take(numbers)
