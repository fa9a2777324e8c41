"""Timestamps on the device that does the work: marks are taken without waiting and resolved at the end.

The time that instruments take amid what they time is left out of the clock of the host: `OwnTime`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any

import torch

from distprof.own import time
from distprof.process.accelerators import CPU, accelerator, device_type, is_capturing

Anchor = tuple[torch.Event, int]
"""An event of a device that is idle, and the host's time at it."""
TRIES, MOST_S = 5, 0.05
"""Round trips to a device, and how long more of them are tried until one takes no longer than `SURE_NS`: where other
processes use the device as well, each has it for some milliseconds in turn."""
SURE_NS = 100_000
PATIENCE_S, LOOK_EVERY_S = 20.0, 0.0005


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


class StreamStopwatch(Stopwatch):
    """Events on the current streams of an accelerator; nothing is waited for between the constructor and `settle`.

    Times are ns since the epoch: at both of these moments the clocks of host and device are compared. While a stream
    captures a graph nothing runs, so no time passes, and the graph gets no events.
    """

    resolves_at_once = False

    def __init__(self, kind: str) -> None:
        """Compares the clocks of the host and of the current device; `kind` is the type of device, like cuda."""
        self._prepare(kind)
        self._compare(torch.accelerator.current_device_index())

    def _prepare(self, kind: str) -> None:
        # torch.cuda.Event asks for the current stream in Python, which takes four times as long
        self._event: Callable[[], torch.Event] = partial(torch.Event, kind, enable_timing=True)
        self._is_capturing: Callable[[], bool] = getattr(accelerator(), "is_current_stream_capturing", _never)
        self._latest: torch.Event | None = None
        self._anchors: dict[int, list[Anchor]] = {}
        """By index of the device."""
        self.uncertainty_ns = 0
        """By how much a comparison of the two clocks may be wrong, at most: half a round trip (Cristian 1989)."""

    def mark(self) -> torch.Event | None:
        """None only where a graph has been captured since the constructor."""
        if self._is_capturing():
            return self._latest
        event = self._latest = self._event()
        event.record()
        self._anchors.setdefault(event.device.index, [])  # of a device that is used for the first time
        return event

    def resolve(self, mark: torch.Event | None) -> int:
        """When the stream reached the mark; torch returns milliseconds as a float."""
        if mark is None:
            return self._anchors[min(self._anchors)][0][1]
        first, last = (self._anchors[mark.device.index][place] for place in (0, -1))
        scale = 1e6
        if last is not first:
            scale = (last[1] - first[1]) / first[0].elapsed_time(last[0])
        return last[1] - round(mark.elapsed_time(last[0]) * scale)

    def settle(self, *, every_stream: bool = True) -> None:
        """Compares the clocks again.

        Args:
            every_stream: Waits for all streams, else for the current ones alone: what others communicate may never end.

        Raises:
            RuntimeError: A stream does not come to its end.
        """
        for device in list(self._anchors):
            self._compare(device, every_stream=every_stream)

    def _compare(self, device: int, *, every_stream: bool = False) -> None:
        """Notes an event and the host's time at which the device was there, of some tries the surest one."""
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
    """Waits until a stream has come to an event; False where it does not: a job that fails must still end."""
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
    """True where the backend of an accelerator has events with times; asking waits once for one that is not CUDA."""
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
    """An event on the current stream that tells times; None without a device, or while a graph is captured."""
    kind = device_type()
    if kind == CPU or is_capturing() or not has_events(kind):
        return None
    event: Any = torch.Event(kind, enable_timing=True)
    event.record()
    return event  # type: ignore[no-any-return]


def stopwatch() -> Stopwatch:
    """The stopwatch of the device in use: the accelerator once the script has initialised it, else the host.

    It is the host's as well where a backend has no events with times, of which `distprof doctor` tells.
    """
    kind = device_type()
    return StreamStopwatch(kind) if kind != CPU and has_events(kind) else Stopwatch()


class OwnTime:
    """A clock of the host that stands still while instruments work on a thread; `clock` is one that goes on."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self._spent_ns = self._began_ns = 0
        self._works = False

    def begin(self) -> None:
        """An instrument begins to work."""
        self._began_ns, self._works = self.clock(), True

    def end(self) -> None:
        """The program goes on."""
        self._works = False
        self._spent_ns += self.clock() - self._began_ns

    def now_ns(self) -> int:
        """The time of the program, from an arbitrary origin."""
        return (self._began_ns if self._works else self.clock()) - self._spent_ns

    def left_out(self, function: Callable[..., None]) -> Callable[..., None]:
        """The same function, as work of an instrument."""
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> None:
            self.begin()
            try:
                function(*args, **kwargs)
            finally:
                self.end()

        return call
