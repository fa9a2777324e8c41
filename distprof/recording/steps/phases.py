"""Whether an optimizer runs on a thread, and not something that runs inside it: phases nest by what runs.

A closure, the forward calls in it and backward are no part of the optimizer that calls them; an optimizer that steps
in a hook of backward is no part of backward.
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
    """An optimizer.step(), or the closure that it called; and what it was called in."""

    optimizer: int | None
    """None for a closure."""
    task: int
    """The backward pass."""
    frame: Frame | None
    """The module."""


new_running = partial(tuple.__new__, _Running)
"""Takes a tuple of its fields: a third of the time that a call of the class takes."""


class Phases:
    """What runs on each thread that calls optimizers."""

    def __init__(self, scopes: ModuleScopes) -> None:
        self._scopes = scopes
        self._by_thread: dict[int, list[_Running]] = defaultdict(list)
        self.num_evaluations = 0
        """Above 0 while the script says that it evaluates."""

    def on_this_thread(self) -> list[_Running]:
        """What runs on it, from the outermost one; the list stays the same."""
        return self._by_thread[get_ident()]

    def optimizer_begins(self, optimizer: Optimizer) -> bool:
        """True if it is not called by another one that runs: a wrapper and what it wraps step once."""
        running = self._by_thread[get_ident()]
        if running and _calls_of_step() <= sum(one.optimizer is not None for one in running):
            running.clear()  # they raised
        running.append(new_running((id(optimizer), graph_task(), self._scopes.current)))
        return len(running) == 1

    def optimizer_ends(self, optimizer: Optimizer) -> bool:
        """True if no other one called it."""
        running = self._by_thread[get_ident()]
        if len(running) == 1 and running[0][0] == id(optimizer):  # as a rule
            running.clear()
            return True
        place = len(running) - 1
        while place >= 0 and running[place].optimizer != id(optimizer):
            place -= 1
        del running[max(place, 0):]  # what raised inside is over too
        return place == 0

    def closure_begins(self) -> None:
        """The optimizer that runs calls its closure."""
        self._by_thread[get_ident()].append(_Running(None, graph_task(), self._scopes.current))

    def closure_ends(self) -> None:
        """The closure returned, or raised."""
        running = self._by_thread[get_ident()]
        if running and running[-1].optimizer is None:
            running.pop()

    def now(self) -> str | None:
        """`optimizer` if nothing else runs on this thread inside of one, `evaluation` where the script says so."""
        if self.num_evaluations:
            return EVALUATION
        running = self._by_thread.get(get_ident())
        if not running:
            return None
        last = running[-1]
        is_innermost = last.optimizer is not None and last.task == graph_task() and last.frame is self._scopes.current
        return OPTIMIZER if is_innermost else None

    def on(self, thread: int) -> str | None:
        """The same of another thread, by its `ident`, as far as modules tell."""
        running = self._by_thread.get(thread)
        if not running or running[-1].optimizer is None or running[-1].frame is not self._scopes.current_on(thread):
            return None
        return OPTIMIZER


def _calls_of_step() -> int:
    """How many calls of optimizer.step() are under way on this thread, by the frames in which torch calls our hooks."""
    frame: FrameType | None = sys._getframe(1)
    number = 0
    while frame is not None:
        number += frame.f_code.co_filename == HOME
        frame = frame.f_back
    return number
