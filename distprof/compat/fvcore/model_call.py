"""The call of a model that is analysed: the model, what it is called with, and its counts."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from distprof.counting.count import count
from distprof.counting.counts import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A model and its arguments."""

    model: nn.Module
    inputs: Any
    """A tensor, a tuple of positional arguments, or a mapping of keyword arguments."""
    kwargs: Mapping[str, Any]

    def counts(self, shown: str) -> Counts:
        """Runs the model once, watched.

        Args:
            shown: Warnings that come through: all, no_tracer_warning or none.
        """
        args, kwargs = self._arguments()
        with warnings.catch_warnings():
            if shown != "all":
                hidden = {"none": Warning, "no_tracer_warning": torch.jit._trace.TracerWarning}[shown]
                warnings.simplefilter("ignore", hidden)
            return count(_unwrapped(self.model), *args, **kwargs)

    def _arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if isinstance(self.inputs, Mapping) and _accepts(_unwrapped(self.model), self.inputs):
            return (), {**self.inputs, **self.kwargs}
        return self.inputs if isinstance(self.inputs, tuple) else (self.inputs,), self.kwargs


def _unwrapped(model: nn.Module) -> nn.Module:
    parallel = isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel))
    inner: nn.Module = model.get_submodule("module") if parallel else model
    return inner


def _accepts(model: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """True where a model's forward takes these keyword arguments."""
    try:
        inspect.signature(model.forward).bind(**arguments)
    except TypeError:
        return False
    return True
