"""Computes rates from counters that only grow."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

Values = dict[str, float]
"""Values by column name of `contract/conditions.py`."""


class Rates:
    """Keeps counters from one look to the next."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def per_second(self, name: str, total: float) -> float | None:
        """Returns the growth of a counter per second since the last look; None at the first, or if it was reset."""
        now = time.monotonic()
        before = self._before.get(name)
        self._before[name] = now, total
        if before is None or total < before[1] or now <= before[0]:
            return None
        return (total - before[1]) / (now - before[0])

    def grown(self, name: str, total: float) -> float | None:
        """Returns the growth of a counter since the last look; None at the first, or if it was reset."""
        before = self._before.get(name)
        self._before[name] = time.monotonic(), total
        return None if before is None or total < before[1] else total - before[1]

    def forget(self, but: Iterable[str]) -> None:
        """Drops all counters except for these."""
        kept = set(but)
        self._before = {name: value for name, value in self._before.items() if name in kept}


def put(into: Values, column: str, value: float | None) -> None:
    """Adds a value if it is known."""
    if value is not None:
        into[column] = value


def numbers(text: str) -> set[int]:
    """Parses a list of the kernel, such as `0-3,8`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def pairs(path: Path) -> dict[str, int]:
    """Reads a file of the kernel with a name and a number on each line."""
    return {words[0]: int(words[1]) for words in map(str.split, path.read_text().splitlines()) if len(words) == 2}
