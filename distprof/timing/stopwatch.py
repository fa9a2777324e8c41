"""Timestamps on the device that does the work: marks are taken without waiting and resolved at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class Stopwatch:
    """Takes marks with `perf_counter_ns`, for work on the host, and turns them into ns from an arbitrary origin."""

    resolves_at_once = True
    """False if marks have a time only after `settle`."""
    mark: Callable[[], Any] = staticmethod(time.perf_counter_ns)

    def resolve(self, mark: Any) -> int:
        """The time of a mark."""
        return int(mark)

    def settle(self) -> None:
        """Waits until all marks have a time."""


class CudaStopwatch(Stopwatch):
    """Events on the current stream; no synchronisation before `settle`."""

    resolves_at_once = False

    def __init__(self) -> None:
        self._origin = self.mark()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def resolve(self, mark: torch.cuda.Event) -> int:
        """Time since the stopwatch was made; torch returns milliseconds as a float."""
        milliseconds: float = self._origin.elapsed_time(mark)
        return round(milliseconds * 1e6)

    def settle(self) -> None:
        torch.cuda.synchronize()


def stopwatch() -> Stopwatch:
    """The stopwatch of the device in use: CUDA once the script has initialised it, else the host."""
    # is_available() would initialise the driver of a script that may still fork or choose its devices
    return CudaStopwatch() if torch.cuda.is_initialized() else Stopwatch()
