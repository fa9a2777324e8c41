"""Which events of a rank are merged: by time, category, name and duration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import numpy as np

from distprof.arrays import Array, Flags, Integers
from distprof.merge.scan.engine import Scanner
from distprof.merge.scan.json_values import string_of
from distprof.merge.scan.scanned_columns import NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSelection:
    """Filters of one rank's events. Names of processes and threads always stay."""

    windows_ns: Windows | None = None
    """Spans on the rank's own clock; what lies outside of all of them is left out. None: no limit."""
    categories: frozenset[str] | None = None
    """Those that stay; events without a category stay too. None: all."""
    without_python: bool = False
    """Leaves the Python frames out that torch.profiler records `with_stack`."""
    min_duration_ns: int = 0
    """Shorter slices are left out."""
    keep: tuple[str, ...] = ()
    """Slices stay whose names match one of these, as the shell matches names of files; all, without one."""
    drop: tuple[str, ...] = ()
    """Of those, slices are left out whose names match one of these."""

    @property
    def is_all(self) -> bool:
        """True where nothing is left out."""
        return self == EventSelection()

    def kept(self, start_ns: Integers, duration_ns: Integers, category: Array, name: Array, is_slice: Flags,
             scanner: Scanner) -> Flags:
        """True a row for what stays.

        Args:
            start_ns: int64 a row, the rank's own clock.
            duration_ns: int64 a row, `NONE` where there is none.
            category: Number a row, -1 where there is none.
            name: Likewise.
            is_slice: bool a row.
            scanner: Has the texts of the numbers.
        """
        keep = ~(is_slice & (np.maximum(duration_ns, 0) < self.min_duration_ns))
        if self.categories is not None or self.without_python:
            wanted = [self._wants(text.decode("utf-8", "replace")) for text in scanner.categories.texts()]
            keep &= np.array([*wanted, True])[category]  # the last one is for -1
        if self.keep or self.drop:
            named = [_is_named(self.keep, self.drop, text) for text in scanner.names.texts()]
            keep &= np.array([*named, not self.keep])[name] | ~is_slice
        if self.windows_ns is not None:
            end_ns = start_ns + np.where(duration_ns == NONE, 0, np.maximum(duration_ns, 0))
            keep &= self.windows_ns.meets(start_ns, end_ns)
        return keep

    def _wants(self, category: str) -> bool:
        return (self.categories is None or category in self.categories) and not (
            self.without_python and category == "python_function")


@lru_cache(maxsize=1 << 16)
def _is_named(keep: tuple[str, ...], drop: tuple[str, ...], text: bytes) -> bool:
    name = string_of(text)
    return (not keep or any(fnmatchcase(name, pattern) for pattern in keep)) and not any(
        fnmatchcase(name, pattern) for pattern in drop)


class Windows:
    """Spans in any order, which may overlap."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        """Start and end of each, in ns."""
        ordered = np.array(sorted(spans), np.int64).reshape(-1, 2)
        self._starts, self._ends = ordered[:, 0].copy(), ordered[:, 1].copy()
        # the last end of those that start no later
        self._latest = np.append(-(2**63), np.maximum.accumulate(self._ends)) if len(ordered) else np.array([-(2**63)])

    def meets(self, start_ns: Integers | int, end_ns: Integers | int) -> Flags:
        """bool a row: it shares time with a span. Its own end is part of it, that of the span is not."""
        return self._latest.take(np.searchsorted(self._starts, end_ns, "right")) > start_ns

    def map(self, change: Callable[[Any], Any]) -> Windows:
        """The spans after a change of all times, such as from one clock to another."""
        return Windows(zip(change(self._starts).tolist(), change(self._ends).tolist(), strict=True))
