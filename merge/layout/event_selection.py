"""Selects the events of a rank to merge: by time, category, name and duration."""

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
    """Filters for one rank's events. Names of processes and threads are always kept."""

    windows_ns: Windows | None = None
    """Time spans on the rank's own clock; events outside all of them are left out. None: no limit."""
    categories: frozenset[str] | None = None
    """Categories to keep; events without a category are kept too. None: all."""
    without_python: bool = False
    """Leaves out the Python frames that torch.profiler records with `with_stack`."""
    min_duration_ns: int = 0
    """Shorter slices are left out."""
    keep: tuple[str, ...] = ()
    """Keeps only slices whose names match one of these shell patterns; all if empty."""
    drop: tuple[str, ...] = ()
    """Leaves out those of them whose names match one of these."""

    @property
    def is_all(self) -> bool:
        """True if nothing is left out."""
        return self == EventSelection()

    def kept(self, start_ns: Integers, duration_ns: Integers, category: Array, name: Array, is_slice: Flags,
             scanner: Scanner) -> Flags:
        """Returns whether each row is kept.

        Args:
            start_ns: int64 per row, on the rank's own clock.
            duration_ns: int64 per row; `NONE` for none.
            category: Number per row; -1 for none.
            name: Number per row; -1 for none.
            is_slice: bool per row.
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
    """Time spans in any order, which may overlap."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        """Takes start and end of each, in ns."""
        ordered = np.array(sorted(spans), np.int64).reshape(-1, 2)
        self._starts, self._ends = ordered[:, 0].copy(), ordered[:, 1].copy()
        # the latest end of the spans that start no later
        self._latest = np.append(-(2**63), np.maximum.accumulate(self._ends)) if len(ordered) else np.array([-(2**63)])

    def meets(self, start_ns: Integers | int, end_ns: Integers | int) -> Flags:
        """Returns whether each row overlaps a span. A row includes its own end, a span does not."""
        return self._latest.take(np.searchsorted(self._starts, end_ns, "right")) > start_ns

    def map(self, change: Callable[[Any], Any]) -> Windows:
        """Returns the spans with all times converted, for example to another clock."""
        return Windows(zip(change(self._starts).tolist(), change(self._ends).tolist(), strict=True))
