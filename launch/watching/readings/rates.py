"""Counters that only grow -> how fast they grow."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

Values = dict[str, float]
"""By the name of a column of `contract/conditions.py`."""


class Rates:
    """Remembers counters from one look to the next."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def per_second(self, name: str, total: float) -> float | None:
        """How fast a counter has grown since the last look; None at the first, and after it began anew."""
        now = time.monotonic()
        before = self._before.get(name)
        self._before[name] = now, total
        if before is None or total < before[1] or now <= before[0]:
            return None
        return (total - before[1]) / (now - before[0])

    def grown(self, name: str, total: float) -> float | None:
        """By how much a counter has grown since the last look; None as above."""
        before = self._before.get(name)
        self._before[name] = time.monotonic(), total
        return None if before is None or total < before[1] else total - before[1]

    def forget(self, but: Iterable[str]) -> None:
        """Drops all counters except for these."""
        kept = set(but)
        self._before = {name: value for name, value in self._before.items() if name in kept}


def put(into: Values, column: str, value: float | None) -> None:
    """Adds a value that is known."""
    if value is not None:
        into[column] = value


def numbers(text: str) -> set[int]:
    """A list of the kernel, like `0-3,8`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def pairs(path: Path) -> dict[str, int]:
    """A file of the kernel whose lines are a name and a number."""
    return {words[0]: int(words[1]) for words in map(str.split, path.read_text().splitlines()) if len(words) == 2}
