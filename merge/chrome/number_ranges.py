"""Ranges of ranks or steps, as the command line takes and prints them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from distprof.errors import UsageError


@dataclass(frozen=True, slots=True)
class NumberRanges:
    """Whole numbers, like ranks or steps: `0-7,64`."""

    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, text: str, flag: str) -> NumberRanges:
        """Reads `0-7,64`.

        Raises:
            UsageError: It is something else.
        """
        spans = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if first > last:
                raise UsageError(f"expected numbers and spans for {flag}, found {text!r}", hint=f"{flag} 0-7,64")
            spans.append((first, last))
        return cls(tuple(sorted(spans)))

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.spans)

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.spans)
