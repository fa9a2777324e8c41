"""Spans of time that are asked many times which events they meet: a merge of chosen steps has one for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distprof.arrays import Flags, Integers


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
