"""Marks of phase boundaries on the current stream of a device, and the times between them.

The host's times differ if it runs ahead of the device or waits for it: a `loss.item()` after the optimizer makes the
host wait for the device, which is not a wait for data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from distprof.process.accelerators import CPU, device_type, is_capturing
from distprof.timing.stopwatch import has_events

MARKED_STEPS = 4
"""Maximum number of marked steps per row. If steps take 50 ms or more, these are all; the others are assumed to be like
them. With cold caches a mark takes 25 us."""
BEGIN, END, ENTER, LEAVE, OPTIMIZER, OPTIMIZER_END, LOAD, LOADED = range(8)
"""Boundaries: start of a step, its end (where the next one begins), call and return of a root module, start and end
of an optimizer, and of loading data after the first forward call."""
Marks = list[tuple[int, torch.Event]]


class PhaseMarks:
    """Marks phase boundaries in some steps of a row."""

    def __init__(self) -> None:
        """Begins switched off."""
        self.is_on = False
        """True while boundaries are to be marked."""
        self._kind = ""
        self._marks: Marks = []
        self._steps = 0

    def begin_row(self) -> bool:
        """Begins a row; true if the device has events with times."""
        kind = device_type()
        tells = kind != CPU and has_events(kind)
        self._kind, self._marks, self._steps, self.is_on = kind, [], 0, tells
        return tells

    def add(self, border: int, event: torch.Event | None = None) -> torch.Event | None:
        """Adds a mark, at which the stream arrives some time later, and returns its event; None if that failed.

        Args:
            border: The boundary.
            event: An event that was recorded since the script's last work; by default a new one.
        """
        event = self._recorded() if event is None else event
        if event is None:
            self.is_on = False
            return None
        self._marks.append((border, event))
        self._steps += border == END
        self.is_on = self._steps < MARKED_STEPS
        return event

    def _recorded(self) -> torch.Event | None:
        try:
            if is_capturing():
                return None
            event: Any = torch.Event(self._kind, enable_timing=True)
            event.record()
        except RuntimeError:  # an error of the script, which torch raises again
            return None
        return event  # type: ignore[no-any-return]

    def taken(self) -> Marks:
        """Returns the marks of the row that ends."""
        marks, self._marks, self.is_on = self._marks, [], False
        return marks


def marked_steps(marks: Marks) -> Iterator[tuple[float, float, float, float]]:
    """Yields times in ms for each complete step with a forward call: in all, before that call and in later loading of
    data, forward, optimizers."""
    begin = first = entered = stepping = loading = None
    forward = optimizer = loaded = 0.0
    for border, event in marks:
        if border == ENTER:
            first, entered = first or event, event
        elif border == LEAVE and entered is not None:
            forward += entered.elapsed_time(event)
        elif border == OPTIMIZER:
            stepping = event
        elif border == OPTIMIZER_END and stepping is not None:
            optimizer += stepping.elapsed_time(event)
        elif border == LOAD:
            loading = event
        elif border == LOADED and loading is not None:
            loaded += loading.elapsed_time(event)
        elif border in (BEGIN, END):
            if border == END and begin is not None and first is not None:
                yield begin.elapsed_time(event), begin.elapsed_time(first) + loaded, forward, optimizer
            begin, first, forward, optimizer, loaded = event, None, 0.0, 0.0, 0.0
        if border in (LEAVE, BEGIN):
            entered = None
        if border in (OPTIMIZER_END, BEGIN):
            stepping = None
        if border in (LOADED, BEGIN):
            loading = None
