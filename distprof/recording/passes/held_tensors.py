"""Tensors that the script holds: parameters, buffers, gradients, the state of optimizers, inputs; by their storage."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from distprof.contract.tables import TableRow
from distprof.model.modules import ModuleMap
from distprof.model.scopes import Frame
from distprof.model.tensors import dtype_name, tensors
from distprof.recording.steps.optimizers import live_optimizers

Place = tuple[str | None, str | None]
"""Module path and name."""


class HeldTensors:
    """Rows of tensors.parquet; a listener to the modules, whose inputs it sees."""

    def __init__(self, modules: ModuleMap) -> None:
        self.rows: list[TableRow] = []
        self._modules = modules
        self._optimizers: list[weakref.ref[Optimizer]] = []

    def start(self) -> None:
        """Finds the optimizers, and takes down what is held now."""
        self._optimizers = [weakref.ref(optimizer) for optimizer in live_optimizers()]  # to find them takes 0.1 s
        self.look()

    def look(self) -> None:
        """Takes down what is held now."""
        now, places = time.time_ns(), dict[int, Place]()
        for path, name, tensor, category in self._of_modules():
            self._add(now, tensor, category, (path, name))
            if category == "parameter":
                places[id(tensor)] = path, name
                self._add(now, tensor.grad, "gradient", (path, name))
        for optimizer in self._optimizers:
            for owner, state in getattr(optimizer(), "state", {}).items():
                self._add_state(now, state, places.get(id(owner), (None, None)))

    def _of_modules(self) -> Iterator[tuple[str, str, torch.Tensor, str]]:
        for site in self._modules.sites():
            module = site.module()
            if isinstance(module, nn.Module):
                for category, held in (("parameter", module._parameters), ("buffer", module._buffers)):
                    yield from ((site.path, name, tensor, category) for name, tensor in held.items()
                                if tensor is not None)

    def _add_state(self, now: int, state: Any, place: Place) -> None:
        path, name = place
        for key, value in (state.items() if isinstance(state, dict) else ()):
            if isinstance(value, torch.Tensor):
                self._add(now, value, "optimizer_state", (path, f"{name}.{key}" if name else str(key)))

    def enter(self, frame: Frame) -> None:
        """Nothing to do: a call's inputs are given when it returns."""

    def exit(self, frame: Frame, args: Any, kwargs: Any, _result: Any) -> None:
        """Takes down what went into a model."""
        if frame.is_root:
            now = time.time_ns()
            for tensor in tensors((args, kwargs)):
                self._add(now, tensor, "input", (frame.site.path, None))

    def _add(self, now: int, tensor: torch.Tensor | None, category: str, place: Place) -> None:
        local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor; to_local() would be an operator
        storage = _storage(local)
        if local is not None and storage is not None:
            self.rows.append({
                "time_ns": now, "device": str(local.device), "address": storage[0], "size_bytes": storage[1],
                "category": category, "module_path": place[0], "name": place[1],
                "shape": json.dumps(list(local.shape)), "dtype": dtype_name(local.dtype)})


def _storage(tensor: torch.Tensor | None) -> tuple[int, int] | None:
    """Address and bytes; None for a tensor without memory of its own."""
    if tensor is None:
        return None
    try:
        storage = tensor.untyped_storage()
        return (storage.data_ptr(), storage.nbytes()) if storage.nbytes() and storage.data_ptr() else None
    except (RuntimeError, NotImplementedError):  # sparse, lazy, fake
        return None
