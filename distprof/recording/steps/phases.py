"""Whether an optimizer runs on a thread, and not something inside it: phases are nested.

A closure, the forward calls in it and backward are not part of the optimizer that calls them; an optimizer that steps
in a hook of backward is not part of backward.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import partial
from threading import get_ident
from types import FrameType
from typing import NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers

from distprof.contract.tables import EVALUATION
from distprof.model.scopes import Frame, ModuleScopes

OPTIMIZER = "optimizer"
HOME = optimizers.__file__
graph_task = torch._C._current_graph_task_id


class _Running(NamedTuple):
    """A running optimizer.step(), or the closure that it called, and where it was called."""

    optimizer: int | None
    """Id of the optimizer; None for a closure."""
    task: int
    """Id of the autograd graph task in which it was called; -1 outside of backward."""
    frame: Frame | None
    """The module call in which it was called."""


new_running = partial(tuple.__new__, _Running)
"""Creates an instance from a tuple of its fields, in a third of the time that a call of the class takes."""


class Phases:
    """The running optimizers of each thread."""

    def __init__(self, scopes: ModuleScopes) -> None:
        self._scopes = scopes
        self._by_thread: dict[int, list[_Running]] = defaultdict(list)
        self.num_evaluations = 0
        """Above 0 while the script has declared that it evaluates."""

    def on_this_thread(self) -> list[_Running]:
        """Returns what runs on this thread, from the outermost; always the same list object."""
        return self._by_thread[get_ident()]

    def optimizer_begins(self, optimizer: Optimizer) -> bool:
        """Notes that an optimizer runs; true if no other one called it: a wrapper and what it wraps step once."""
        running = self._by_thread[get_ident()]
        if running and _calls_of_step() <= sum(one.optimizer is not None for one in running):
            running.clear()  # earlier ones have raised
        running.append(new_running((id(optimizer), graph_task(), self._scopes.current)))
        return len(running) == 1

    def optimizer_ends(self, optimizer: Optimizer) -> bool:
        """Notes that an optimizer has ended; true if no other one called it."""
        running = self._by_thread[get_ident()]
        if len(running) == 1 and running[0][0] == id(optimizer):  # the usual case
            running.clear()
            return True
        place = len(running) - 1
        while place >= 0 and running[place].optimizer != id(optimizer):
            place -= 1
        del running[max(place, 0):]  # what raised inside it is over too
        return place == 0

    def closure_begins(self) -> None:
        """Notes that the running optimizer calls its closure."""
        self._by_thread[get_ident()].append(_Running(None, graph_task(), self._scopes.current))

    def closure_ends(self) -> None:
        """Notes that the closure has returned or raised."""
        running = self._by_thread[get_ident()]
        if running and running[-1].optimizer is None:
            running.pop()

    def now(self) -> str | None:
        """Returns `evaluation` if the script declared it, `optimizer` if one runs and nothing inside it; else None."""
        if self.num_evaluations:
            return EVALUATION
        running = self._by_thread.get(get_ident())
        if not running:
            return None
        last = running[-1]
        is_innermost = last.optimizer is not None and last.task == graph_task() and last.frame is self._scopes.current
        return OPTIMIZER if is_innermost else None

    def on(self, thread: int) -> str | None:
        """Returns `optimizer` or None for another thread (`ident`), as far as running modules tell."""
        running = self._by_thread.get(thread)
        if not running or running[-1].optimizer is None or running[-1].frame is not self._scopes.current_on(thread):
            return None
        return OPTIMIZER


def _calls_of_step() -> int:
    """Returns how many calls of optimizer.step() run on this thread, by the frames in which torch calls our hooks."""
    frame: FrameType | None = sys._getframe(1)
    number = 0
    while frame is not None:
        number += frame.f_code.co_filename == HOME
        frame = frame.f_back
    return number
