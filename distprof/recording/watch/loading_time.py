"""Time in data loaders after the first forward call of a step: with accumulated gradients, several batches are loaded
per step, and without this the time would count as backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from typing import Any

from torch.compiler import is_compiling
from torch.utils.data import dataloader

from distprof.own import time
from distprof.recording.watch.phase_marks import LOAD, LOADED, PhaseMarks

MARKED_NS = 1_000_000
"""Loads are marked on the stream of a device if one of the last took at least this many ns."""
DECAY = 0.9
"""With each load, the duration of the longest one counts for that much less."""


class LoadingTime:
    """Adds up the time of calls of `next` on iterators of torch's data loaders.

    Args:
        counts: Returns whether a call that begins now is to be counted.
        marks: Marks the same boundaries on the stream of a device.
    """

    def __init__(self, counts: Callable[[], bool], marks: PhaseMarks) -> None:
        self.total_ns = 0
        self._counts, self._marks = counts, marks
        self.is_loading = False
        """True in a call that is counted."""
        self._longest_ns = 0.0
        """The longest of the last calls."""
        self._own: Any = None
        self._ours: Any = None

    def start(self) -> None:
        """Wraps the method."""
        own = dataloader._BaseDataLoaderIter.__next__
        if own is self._ours:  # somebody had wrapped it when `stop` was called, and put it back
            return
        self._own, self.is_loading = own, False

        def loads(loading: Any) -> Any:
            if is_compiling() or self.is_loading or not self._counts():  # a dataset may have a loader of its own
                return own(loading)
            return self._timed(own, loading)

        self._ours = update_wrapper(loads, own)
        setattr(dataloader._BaseDataLoaderIter, "__next__", loads)  # noqa: B010 (an assignment to a method is an error)

    def stop(self) -> None:
        """Restores the method, unless somebody has wrapped it again."""
        if self._own is not None and dataloader._BaseDataLoaderIter.__next__ is self._ours:
            setattr(dataloader._BaseDataLoaderIter, "__next__", self._own)  # noqa: B010
            self._own = self._ours = None

    def _timed(self, own: Callable[[Any], Any], loading: Any) -> Any:
        is_marked = self._longest_ns >= MARKED_NS and self._mark(LOAD)
        began = time.perf_counter_ns()
        try:
            self.is_loading = True
            return own(loading)
        finally:
            self.is_loading = False
            took = time.perf_counter_ns() - began
            self.total_ns += took
            self._longest_ns = max(took, DECAY * self._longest_ns)
            if is_marked:
                self._mark(LOADED)

    def _mark(self, border: int) -> bool:
        with suppress(Exception):  # nothing may reach the script
            if self._marks.is_on:
                self._marks.add(border)
                return True
        return False
