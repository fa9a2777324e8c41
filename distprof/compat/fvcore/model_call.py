"""The call of a model that is analysed."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from distprof.counting.count import count
from distprof.counting.counts import Counts

HIDDEN = {"none": Warning, "no_tracer_warning": torch.jit._trace.TracerWarning}
"""What `tracer_warnings` hides; `all` hides nothing."""


def call_counts(model: nn.Module, inputs: Any, kwargs: Mapping[str, Any], shown: str) -> Counts:
    """Runs the model once, watched.

    Args:
        model: DDP and DataParallel are looked into.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        kwargs: More keyword arguments.
        shown: Warnings that come through: all, no_tracer_warning or none.
    """
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = model.get_submodule("module")
    if isinstance(inputs, Mapping) and _accepts(model, inputs):
        inputs, kwargs = (), {**inputs, **kwargs}
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    with warnings.catch_warnings():
        if shown in HIDDEN:
            warnings.simplefilter("ignore", HIDDEN[shown])
        return count(model, *args, **kwargs)


def _accepts(model: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """True where a model's forward takes these keyword arguments."""
    try:
        inspect.signature(model.forward).bind(**arguments)
    except TypeError:
        return False
    return True
