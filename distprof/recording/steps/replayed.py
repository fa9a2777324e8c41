"""Sees steps of optimizers that were captured into a CUDA graph: each replay of the graph is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.optim import Optimizer


class ReplayedSteps:
    """Watches `capture_begin` and `replay` of `torch.cuda.CUDAGraph` between `start` and `stop`."""

    def __init__(self, on_replayed: Callable[[Optimizer], None]) -> None:
        """Prepares; `on_replayed` is called behind each replay of a graph with the last optimizer that it holds."""
        self._on_replayed = on_replayed
        self._newest: Any = None
        self._holds: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._replaced: list[tuple[str, Any, Any]] = []

    def start(self) -> None:
        """Puts functions in front of those of graphs."""
        self._replace("capture_begin", self._capturing)
        self._replace("replay", self._replaying)

    def stop(self) -> None:
        """Takes them away, unless somebody put others in front of them."""
        for name, own, ours in self._replaced:
            if vars(torch.cuda.CUDAGraph).get(name) is ours:
                setattr(torch.cuda.CUDAGraph, name, own)
        self._replaced = []

    @property
    def holds_some(self) -> bool:
        """True while there is a graph that holds an optimizer's step."""
        return len(self._holds) > 0

    def captured(self, optimizer: Optimizer) -> None:
        """An optimizer steps while a graph is captured: the newest one."""
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

    def _capturing(self, own: Any) -> Any:
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._newest = ref(graph)
            return own(graph, *args, **kwargs)

        return capture_begin

    def _replaying(self, own: Any) -> Any:
        def replay(graph: Any) -> Any:
            result = own(graph)
            found = self._holds.get(graph)
            optimizer = None if found is None else found()
            if optimizer is not None:
                self._on_replayed(optimizer)
            return result

        return replay
