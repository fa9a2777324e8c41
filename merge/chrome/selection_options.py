"""Options that choose ranks and events, and how their values are read from the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from distprof.errors import UsageError
from distprof.merge.chrome.number_ranges import NumberRanges

SECONDS: Mapping[str, float] = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions:
    """Which ranks and events go into the merge; by default all of them."""

    ranks: NumberRanges | None = None
    steps: NumberRanges | None = None
    window_ns: tuple[int, int] | None = None
    """Start and end, counted from the first event of all ranks."""
    categories: frozenset[str] | None = None
    without_python: bool = False
    min_duration_ns: int = 0

    @property
    def choose_events(self) -> bool:
        """True where events of a rank are left out."""
        return bool(self.steps or self.window_ns or self.categories is not None or self.without_python
                    or self.min_duration_ns)


def duration_ns(text: str, flag: str) -> int:
    """`1.2s`, `300us`, `4` (seconds) as ns.

    Raises:
        UsageError: It is something else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|ms|s|m|)\s*", text)
    if match is None:
        raise UsageError(f"expected a duration for {flag}, found {text!r}", hint="like 1.2s, 300ms, 50us or 10ns")
    return round(float(match[1]) * SECONDS[match[2]] * 1e9)


def window_ns(text: str, flag: str = "--window") -> tuple[int, int]:
    """`1.2s:1.5s` as ns from the first event on; either end may be missing.

    Raises:
        UsageError: It is something else.
    """
    first, colon, last = text.partition(":")
    if not colon:
        raise UsageError(f"expected a start and an end for {flag}, found {text!r}", hint=f"{flag} 1.2s:1.5s")
    start = duration_ns(first, flag) if first.strip() else 0
    end = duration_ns(last, flag) if last.strip() else 2**62
    if start >= end:
        raise UsageError(f"expected an end behind the start for {flag}, found {text!r}", hint=f"{flag} 1.2s:1.5s")
    return start, end
