"""Chooses the events of a rank that go into the merged trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.merge.scan.engine import Interner
from distprof.merge.scan.scanned_columns import NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSelection:
    """Filters of one rank's events. Names of processes and threads always stay."""

    windows_ns: tuple[tuple[int, int], ...] | None = None
    """Spans on the rank's own clock; what lies outside of all of them is left out. None: no limit."""
    categories: frozenset[str] | None = None
    """Those that stay; events without a category stay too. None: all."""
    without_python: bool = False
    """Leaves the Python frames out that torch.profiler records `with_stack`."""
    min_duration_ns: int = 0
    """Shorter slices are left out."""

    @property
    def is_all(self) -> bool:
        """True where nothing is left out."""
        return self == EventSelection()

    def kept(self, start_ns: Any, duration_ns: Any, category: Any, is_slice: Any, unwanted: Any) -> Any:
        """True a row for what stays.

        Args:
            start_ns: int64 a row, the rank's own clock.
            duration_ns: int64 a row, `NONE` where there is none.
            category: Number a row, -1 where there is none.
            is_slice: bool a row.
            unwanted: bool by category number, of `unwanted_categories`.
        """
        keep = ~(is_slice & (np.maximum(duration_ns, 0) < self.min_duration_ns))
        if len(unwanted):
            keep &= (category < 0) | ~unwanted[np.maximum(category, 0)]
        if self.windows_ns is not None:
            end_ns = start_ns + np.where(duration_ns == NONE, 0, np.maximum(duration_ns, 0))
            inside = np.zeros(len(start_ns), bool)
            for first, last in self.windows_ns:
                inside |= (start_ns < last) & (end_ns >= first)
            keep &= inside
        return keep

    def unwanted_categories(self, categories: Interner) -> Any:
        """bool by number: categories that are left out; empty where none is."""
        if self.categories is None and not self.without_python:
            return np.empty(0, bool)
        names = [text.decode("utf-8", "replace") for text in categories.texts()]
        return np.array([(self.categories is not None and name not in self.categories)
                         or (self.without_python and name == "python_function") for name in names], bool)
