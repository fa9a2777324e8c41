"""Which thread's steps are recorded if several threads of a script train: passes are bound to one thread."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from torch.optim import Optimizer

from distprof.model.modules import Model

LOOKED_AT = 12
"""Number of optimizer steps that are examined, from the first on a second thread, to find the thread with most."""
TASKS = Path("/proc/self/task")


class StepThread:
    """The only thread that trains; of several, the one with most of the first optimizer steps."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.left_out = set[int]()
        """Native ids of the other threads: their calls are ignored."""
        self._note = note
        self._steps: Counter[int] = Counter()
        self._optimizers: dict[int, weakref.WeakSet[Optimizer]] = defaultdict(weakref.WeakSet)
        self._models: dict[Model, set[int]] = defaultdict(set)
        self._chosen: int | None = None
        self._contested = 0
        self._reported = False

    @property
    def is_other(self) -> bool:
        """True on a thread whose steps are ignored."""
        return bool(self.left_out) and threading.get_native_id() in self.left_out

    @property
    def is_open(self) -> bool:
        """True while it is being decided which thread it is."""
        return self._contested > 0

    def meets(self, model: Model) -> None:
        """Notes that a model is called on this thread."""
        if self._chosen is None:
            self._models[model].add(threading.get_native_id())

    def counts(self, optimizer: Optimizer, *, measured: bool) -> bool:
        """Returns whether an optimizer step is of the thread whose steps are recorded; decides which thread that is.

        Args:
            optimizer: The optimizer that stepped.
            measured: True if steps have already been measured on the current thread.
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
        """Returns optimizers that stepped and models that were called on other threads only, and forgets them."""
        own = self._chosen if self._chosen is not None else threading.get_native_id()
        mine = self._optimizers.get(own, ())
        optimizers = [one for thread, some in self._optimizers.items() if thread != own
                      for one in some if one not in mine]
        models = [model for model, threads in self._models.items() if own not in threads]
        self._optimizers, self._models = defaultdict(weakref.WeakSet), defaultdict(set)
        return optimizers, models
