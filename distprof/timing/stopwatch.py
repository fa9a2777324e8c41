"""Timestamps on the device that does the work: marks are taken without waiting and resolved at the end."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Stopwatch(Protocol):
    """Takes marks and turns them into nanoseconds from an arbitrary origin."""

    resolves_at_once: bool
    """False if marks have a time only after `settle`."""

    def mark(self) -> Any: ...

    def resolve(self, mark: Any) -> int: ...

    def settle(self) -> None: ...


class HostStopwatch:
    """`perf_counter_ns`, for work on the host."""

    resolves_at_once = True
    mark = staticmethod(time.perf_counter_ns)

    def resolve(self, mark: int) -> int:
        """A mark is a time already."""
        return mark

    def settle(self) -> None:
        """Nothing to wait for."""


class CudaStopwatch:
    """Events on the current stream; no synchronisation before `settle`."""

    resolves_at_once = False

    def __init__(self) -> None:
        self._origin = self.mark()

    def mark(self) -> torch.cuda.Event:
        """Records an event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def resolve(self, mark: torch.cuda.Event) -> int:
        """Time since the stopwatch was made; torch returns milliseconds as a float."""
        milliseconds: float = self._origin.elapsed_time(mark)
        return round(milliseconds * 1e6)

    def settle(self) -> None:
        """Waits until the device has passed all marks."""
        torch.cuda.synchronize()


def stopwatch() -> Stopwatch:
    """The stopwatch of the device in use: CUDA once the script has initialised it, else the host."""
    # is_available() would initialise the driver of a script that may still fork or choose its devices
    return CudaStopwatch() if torch.cuda.is_initialized() else HostStopwatch()
