"""Which thread's steps are recorded where several threads of a script train: passes are bound to one."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from torch.optim import Optimizer

from distprof.model.modules import Model

LOOKED_AT = 12
"""Optimizer steps that are looked at, from the moment in which there are several threads, to find the one with most."""
TASKS = Path("/proc/self/task")


class StepThread:
    """The only thread that trains, else the one with the most of the first optimizer steps."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.left_out = set[int]()
        """Native ids of the others: what they call is not looked at."""
        self._note = note
        self._steps: Counter[int] = Counter()
        self._optimizers: dict[int, weakref.WeakSet[Optimizer]] = defaultdict(weakref.WeakSet)
        self._models: dict[Model, set[int]] = defaultdict(set)
        self._chosen: int | None = None
        self._contested = 0
        self._reported = False

    @property
    def is_other(self) -> bool:
        """True on a thread whose steps are left out."""
        return bool(self.left_out) and threading.get_native_id() in self.left_out

    @property
    def is_open(self) -> bool:
        """True while it has to be found out which thread it is."""
        return self._contested > 0

    def meets(self, model: Model) -> None:
        """A model is called on this thread."""
        if self._chosen is None:
            self._models[model].add(threading.get_native_id())

    def counts(self, optimizer: Optimizer, *, measured: bool) -> bool:
        """True where a step of an optimizer is one of the thread; decides which that is.

        Args:
            optimizer: Which.
            measured: Steps have been measured already, on the thread that it is now.
        """
        own = threading.get_native_id()
        if own in self.left_out:
            return False
        if self._chosen is None:
            self._steps[own] += 1
            self._optimizers[own].add(optimizer)
            if len(self._steps) == 1:
                return True
            self._contested += 1
            if not measured and self._contested < LOOKED_AT:
                return False
            self._choose(next(iter(self._steps)) if measured else max(self._steps, key=self._steps.__getitem__))
        elif own != self._chosen:
            self._choose(self._chosen if (TASKS / str(self._chosen)).exists() else own)
        return own == self._chosen

    def _choose(self, thread: int) -> None:
        self._contested = 0
        self.left_out |= {*self._steps, threading.get_native_id()} - {thread}
        self._chosen = thread
        if not self._reported:
            self._reported = True
            self._note("steps end on several threads: only those of one thread are recorded")

    def others(self) -> tuple[list[Optimizer], list[Model]]:
        """Optimizers that stepped, and models that were called, on other threads alone; told once."""
        own = self._chosen if self._chosen is not None else threading.get_native_id()
        mine = self._optimizers.get(own, ())
        optimizers = [one for thread, some in self._optimizers.items() if thread != own
                      for one in some if one not in mine]
        models = [model for model, threads in self._models.items() if own not in threads]
        self._optimizers, self._models = defaultdict(weakref.WeakSet), defaultdict(set)
        return optimizers, models
