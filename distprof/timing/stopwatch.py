"""Timestamps on the device that does the work: marks are taken without waiting and resolved to times at the end.

`OwnTime` is a host clock that excludes the time that instruments spend inside what they measure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any

import torch

from distprof.own import time
from distprof.process.accelerators import CPU, accelerator, device_type, is_capturing

Anchor = tuple[torch.Event, int]
"""An event on an idle device, and the host's time at that moment (ns since the epoch)."""
TRIES, MOST_S = 5, 0.05
"""`TRIES` is the number of round trips to a device per comparison of clocks. Further ones are tried for up to
`MOST_S` seconds until one takes at most `SURE_NS`: if other processes use the device, each holds it for some
milliseconds in turn."""
SURE_NS = 100_000
PATIENCE_S, LOOK_EVERY_S = 20.0, 0.0005


class Stopwatch:
    """Stopwatch of the host: marks are values of `perf_counter_ns`, times are ns from an arbitrary origin."""

    resolves_at_once = True
    """False if marks can only be resolved after `settle`."""
    mark: Callable[[], Any] = staticmethod(time.perf_counter_ns)

    def resolve(self, mark: Any) -> int:
        """Returns the time of a mark in ns."""
        return int(mark)

    def settle(self) -> None:
        """Waits until all marks can be resolved."""


class StreamStopwatch(Stopwatch):
    """Stopwatch of an accelerator: marks are events on its current streams, and only the constructor and `settle` wait.

    The constructor and `settle` compare the clocks of host and device, so times are ns since the epoch. While a stream
    captures a graph, nothing runs and no time passes, so no events are recorded into the graph.
    """

    resolves_at_once = False

    def __init__(self, kind: str) -> None:
        """Compares the clocks of the host and of the current device; `kind` is the device type, such as cuda."""
        self._prepare(kind)
        self._compare(torch.accelerator.current_device_index())

    def _prepare(self, kind: str) -> None:
        # torch.cuda.Event looks up the current stream in Python, which takes four times as long
        self._event: Callable[[], torch.Event] = partial(torch.Event, kind, enable_timing=True)
        self._is_capturing: Callable[[], bool] = getattr(accelerator(), "is_current_stream_capturing", _never)
        self._latest: torch.Event | None = None
        self._anchors: dict[int, list[Anchor]] = {}
        """Device index -> comparisons of the clocks, the earliest first."""
        self.uncertainty_ns = 0
        """Upper bound of the error of a clock comparison: half of the longest round trip used (Cristian 1989)."""

    def mark(self) -> torch.Event | None:
        """Records an event; None only if a graph has been captured ever since the constructor."""
        if self._is_capturing():
            return self._latest
        event = self._latest = self._event()
        event.record()
        self._anchors.setdefault(event.device.index, [])  # a new device is compared in `settle`
        return event

    def resolve(self, mark: torch.Event | None) -> int:
        """Returns when the stream reached the mark, in ns since the epoch.

        With two comparisons, their distance gives the scale of the device's clock.
        """
        if mark is None:
            return self._anchors[min(self._anchors)][0][1]
        first, last = (self._anchors[mark.device.index][place] for place in (0, -1))
        scale = 1e6
        if last is not first:
            scale = (last[1] - first[1]) / first[0].elapsed_time(last[0])
        return last[1] - round(mark.elapsed_time(last[0]) * scale)

    def settle(self, *, every_stream: bool = True) -> None:
        """Compares the clocks of host and device again.

        Args:
            every_stream: Waits for all streams of each device, otherwise only for the current ones: communication on
                other streams may never end.

        Raises:
            RuntimeError: A stream does not finish its work in time.
        """
        for device in list(self._anchors):
            self._compare(device, every_stream=every_stream)

    def _compare(self, device: int, *, every_stream: bool = False) -> None:
        """Stores an event and the host's time at it, from the round trip that took least time."""
        if self._is_capturing():
            return
        before = torch.accelerator.current_device_index()
        try:
            torch.accelerator.set_device_index(device)
            last = self._event()
            last.record()
            if not comes(last):
                raise RuntimeError(f"device {device} did not finish its work within {PATIENCE_S} s")
            if every_stream:
                torch.accelerator.synchronize()
            took_ns, event, host_ns = self._surest()
            self.uncertainty_ns = max(self.uncertainty_ns, took_ns // 2)
        finally:
            torch.accelerator.set_device_index(before)
        self._anchors.setdefault(device, []).append((event, host_ns))

    def _surest(self) -> tuple[int, torch.Event, int]:
        give_up = time.monotonic() + MOST_S
        best = min((self._look() for _ in range(TRIES)), key=lambda one: one[0])
        while best[0] > SURE_NS and time.monotonic() < give_up:
            best = min(best, self._look(), key=lambda one: one[0])
        return best

    def _look(self) -> tuple[int, torch.Event, int]:
        event = self._event()
        before = time.time_ns()
        event.record()
        event.synchronize()
        after = time.time_ns()
        return after - before, event, (before + after) // 2


def comes(event: torch.Event, patience_s: float = PATIENCE_S) -> bool:
    """Waits until the stream has reached an event; False after `patience_s`, since a failing job must still end."""
    give_up = time.monotonic() + patience_s
    while not event.query():
        if time.monotonic() > give_up:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def _never() -> bool:
    return False


@cache
def has_events(kind: str) -> bool:
    """True if an accelerator's backend has events with times; except for CUDA this is tried, which waits once."""
    if kind == "cuda":
        return True
    try:
        first, last = (torch.Event(kind, enable_timing=True) for _ in range(2))
        first.record()
        last.record()
        last.synchronize()
        first.elapsed_time(last)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def recorded_event() -> torch.Event | None:
    """Records an event with a time on the current stream; None without an accelerator, or during a graph capture."""
    kind = device_type()
    if kind == CPU or is_capturing() or not has_events(kind):
        return None
    event: Any = torch.Event(kind, enable_timing=True)
    event.record()
    return event  # type: ignore[no-any-return]


def stopwatch() -> Stopwatch:
    """Returns the stopwatch of the accelerator if the script has initialised one, else of the host.

    The host's is also used if the backend has no events with times, which `distprof doctor` reports.
    """
    kind = device_type()
    return StreamStopwatch(kind) if kind != CPU and has_events(kind) else Stopwatch()


class OwnTime:
    """A host clock that is stopped while instruments work on a thread; `clock` is the clock that it is based on."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self._spent_ns = self._began_ns = 0
        self._works = False

    def begin(self) -> None:
        """Stops the clock: an instrument begins to work."""
        self._began_ns, self._works = self.clock(), True

    def end(self) -> None:
        """Restarts the clock: the program continues."""
        self._works = False
        self._spent_ns += self.clock() - self._began_ns

    def now_ns(self) -> int:
        """Returns the time without that of instruments, in ns from an arbitrary origin."""
        return (self._began_ns if self._works else self.clock()) - self._spent_ns

    def left_out(self, function: Callable[..., None]) -> Callable[..., None]:
        """Wraps a function of an instrument so that the clock is stopped while it runs."""
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> None:
            self.begin()
            try:
                function(*args, **kwargs)
            finally:
                self.end()

        return call
