"""Defines the options of a merge, and parses their values from the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from distprof.errors import UsageError
from distprof.merge.clock.model import Align

SECONDS: Mapping[str, float] = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "": 1.0}


@dataclass(frozen=True, slots=True)
class NumberRanges:
    """Whole numbers, like ranks or steps: `0-7,64`."""

    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, text: str, flag: str) -> NumberRanges:
        """Parses `0-7,64`.

        Raises:
            UsageError: The text has another form.
        """
        spans = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if first > last:
                raise UsageError(f"{flag} takes numbers and ranges, not {text!r}", hint=f"{flag} 0-7,64")
            spans.append((first, last))
        return cls(tuple(sorted(spans)))

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.spans)

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """What goes into the merge and how; by default all ranks and events."""

    ranks: NumberRanges | None = None
    steps: NumberRanges | None = None
    window_ns: tuple[int, int] | None = None
    """Start and end, counted from the first event of all ranks."""
    categories: frozenset[str] | None = None
    without_python: bool = False
    min_duration_ns: int = 0
    keep: tuple[str, ...] = ()
    """Patterns of slice names, see `EventSelection`."""
    drop: tuple[str, ...] = ()
    max_bytes: int | None = None
    """Maximum size of the merged trace as text, which a viewer has to read."""
    format: str = "chrome"
    """A key of `FORMATS`."""
    align: Align = "auto"
    """How the clocks of ranks are aligned."""
    collectives: bool | None = None
    """Whether collectives are drawn and written to a table; None: if distprof recorded the run."""
    tensor_bytes: int | None = None
    """Tensors of at least this many bytes are drawn; None: none."""
    queues: bool = False
    """Whether the queues of devices are drawn."""
    operators: bool = False
    """Whether operators are written to a table for `distprof ops`."""
    name: str = ""
    """Added to the names of all processes, to distinguish merges."""
    anonymise: bool = False
    """Whether folders and hosts are removed from the trace."""
    critical_path: bool = False
    """Whether the critical path of each step is drawn."""

    @property
    def choose_events(self) -> bool:
        """True if events of a rank are left out."""
        return bool(self.steps or self.window_ns or self.categories is not None or self.without_python
                    or self.min_duration_ns or self.keep or self.drop)


def duration_ns(text: str, flag: str) -> int:
    """Parses `1.2s`, `300us`, `4` (seconds) to ns.

    Raises:
        UsageError: The text has another form.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|ms|s|m|)\s*", text)
    if match is None:
        raise UsageError(f"{flag} takes a duration, not {text!r}", hint="like 1.2s, 300ms, 50us or 10ns")
    return round(float(match[1]) * SECONDS[match[2]] * 1e9)


def window_ns(text: str, flag: str = "--window") -> tuple[int, int]:
    """Parses `1.2s:1.5s` to ns since the first event; either end may be missing.

    Raises:
        UsageError: The text has another form.
    """
    first, colon, last = text.partition(":")
    if not colon:
        raise UsageError(f"{flag} takes a start and an end, not {text!r}", hint=f"{flag} 1.2s:1.5s")
    start = duration_ns(first, flag) if first.strip() else 0
    end = duration_ns(last, flag) if last.strip() else 2**62
    if start >= end:
        raise UsageError(f"{flag} must end after its start, found {text!r}", hint=f"{flag} 1.2s:1.5s")
    return start, end
