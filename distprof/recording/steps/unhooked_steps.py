"""Optimizer steps that no optimizer hook sees: replayed in a CUDA graph, or skipped by a gradient scaler.

Each replay of a graph with captured steps counts as one step. If a scaler skips a step, the iteration is over although
the optimizer did not step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer


class ReplayedSteps:
    """Watches `capture_begin` and `replay` of `torch.cuda.CUDAGraph` between `start` and `stop`."""

    def __init__(self, on_replayed: Callable[[Optimizer], None]) -> None:
        """Prepares; `on_replayed` is called after each replay of a graph with the last optimizer captured in it."""
        self._on_replayed = on_replayed
        self._newest: Any = None
        self.has_begun = False
        """True once capturing a graph has begun."""
        self._holds: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._replaced: list[tuple[str, Any, Any]] = []

    def start(self) -> None:
        """Wraps the methods of graphs."""
        self._replace("capture_begin", self._capturing)
        self._replace("replay", self._replaying)

    def stop(self) -> None:
        """Restores the methods, except those that somebody has wrapped again."""
        for name, own, ours in self._replaced:
            if vars(torch.cuda.CUDAGraph).get(name) is ours:
                setattr(torch.cuda.CUDAGraph, name, own)
        self._replaced = []

    @property
    def holds_some(self) -> bool:
        """True while there is a graph with a captured optimizer step."""
        return len(self._holds) > 0

    def captured(self, optimizer: Optimizer) -> None:
        """Notes that an optimizer steps during a capture, which is that of the newest graph."""
        graph = None if self._newest is None else self._newest()
        if graph is not None:
            self._holds[graph] = ref(optimizer)

    def _replace(self, name: str, around: Callable[[Any], Any]) -> None:
        own = vars(torch.cuda.CUDAGraph).get(name)
        if own is not None:
            ours = around(own)
            ours.__wrapped__ = own
            self._replaced.append((name, own, ours))
            setattr(torch.cuda.CUDAGraph, name, ours)

    def _capturing(self, own: Callable[..., Any]) -> Any:
        def capture_begin(graph: torch.cuda.CUDAGraph, *args: Any, **kwargs: Any) -> Any:
            self._newest, self.has_begun = ref(graph), True
            return own(graph, *args, **kwargs)

        return capture_begin

    def _replaying(self, own: Callable[..., Any]) -> Any:
        def replay(graph: torch.cuda.CUDAGraph) -> Any:
            result = own(graph)
            found = self._holds.get(graph)
            optimizer = None if found is None else found()
            if optimizer is not None:
                self._on_replayed(optimizer)
            return result

        return replay


class SkippedSteps:
    """Watches `torch.amp.GradScaler.step` between `start` and `stop`."""

    def __init__(self, num_steps: Callable[[], int], on_skipped: Callable[[Optimizer], None]) -> None:
        """Stores callbacks; `start` wraps the method.

        Args:
            num_steps: Returns the number of optimizer steps so far.
            on_skipped: Called with the optimizer that did not step.
        """
        self._num_steps = num_steps
        self._on_skipped = on_skipped
        self._own: Any = None
        self._ours: Any = None

    def start(self) -> None:
        """Wraps the scaler's method."""
        own = self._own = GradScaler.step

        def step(scaler: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._num_steps()
            result = own(scaler, optimizer, *args, **kwargs)
            if self._num_steps() == before and isinstance(optimizer, Optimizer):
                self._on_skipped(optimizer)
            return result

        step.__wrapped__ = own  # type: ignore[attr-defined]
        self._ours = step
        setattr(GradScaler, "step", step)  # noqa: B010 (an assignment to a method is an error to type checkers)

    def stop(self) -> None:
        """Restores the method, unless somebody has wrapped it again."""
        if self._own is not None and GradScaler.step is self._ours:
            setattr(GradScaler, "step", self._own)  # noqa: B010
        self._own = None
