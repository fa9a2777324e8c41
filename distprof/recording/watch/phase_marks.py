"""Marks of the borders of phases on the current stream of a device, and the times between them.

A host that runs ahead of its device, or waits for it, would tell other times: a `loss.item()` behind the optimizer
makes the host wait for the device there, and that is no wait for data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from distprof.process.accelerators import CPU, device_type, is_capturing
from distprof.timing.stopwatch import has_events

MARKED_STEPS = 24
"""Of each row, which is all of them where steps take 9 ms and more: the others are taken to be like them."""
BEGIN, END, ENTER, LEAVE, OPTIMIZER, OPTIMIZER_END = range(6)
"""Borders: where a step begins, ends (and the next one begins), a root module is called and left, and an optimizer
begins and ends."""
Marks = list[tuple[int, torch.Event]]


class PhaseMarks:
    """Marks the borders of the phases of some steps of a row."""

    def __init__(self) -> None:
        """Begins switched off."""
        self.is_on = False
        """True where a border is to be marked."""
        self._kind = ""
        self._marks: Marks = []
        self._steps = 0

    def begin_row(self) -> bool:
        """A row begins; true where a device tells times."""
        kind = device_type()
        tells = kind != CPU and has_events(kind)
        self._kind, self._marks, self._steps, self.is_on = kind, [], 0, tells
        return tells

    def add(self, border: int) -> None:
        """The stream gets to a border, some time."""
        try:
            if is_capturing():
                self.is_on = False
                return
            event: Any = torch.Event(self._kind, enable_timing=True)
            event.record()
        except RuntimeError:  # the script's error, which torch repeats
            self.is_on = False
            return
        self._marks.append((border, event))
        self._steps += border == END
        self.is_on = self._steps < MARKED_STEPS

    def taken(self) -> Marks:
        """Those of the row that ends."""
        marks, self._marks, self.is_on = self._marks, [], False
        return marks


def marked_steps(marks: Marks) -> Iterator[tuple[float, float, float, float]]:
    """Of each whole step with a forward call, in ms: all of it, in front of that call, in forward and in optimizers."""
    begin = first = entered = stepping = None
    forward = optimizer = 0.0
    for border, event in marks:
        if border == ENTER:
            first, entered = first or event, event
        elif border == LEAVE and entered is not None:
            forward += entered.elapsed_time(event)
        elif border == OPTIMIZER:
            stepping = event
        elif border == OPTIMIZER_END and stepping is not None:
            optimizer += stepping.elapsed_time(event)
        elif border in (BEGIN, END):
            if border == END and begin is not None and first is not None:
                yield begin.elapsed_time(event), begin.elapsed_time(first), forward, optimizer
            begin, first, forward, optimizer = event, None, 0.0, 0.0
        if border in (LEAVE, BEGIN):
            entered = None
        if border in (OPTIMIZER_END, BEGIN):
            stepping = None
