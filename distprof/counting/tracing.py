"""Which operator calls compute nothing that the script uses: those of a trace that is made while a model runs.

A trace runs on fake or meta tensors (torch.export, compilers, probes of shapes), or for its graph alone (make_fx,
`torch.func.linearize`). Where the model itself is on such tensors its calls are what is to be counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import _symbolic_trace

from distprof.model.tensors import has_data

OF_TRACES = FakeTensor, FunctionalTensor
tracing_state = torch._C._get_tracing_state


def are_real(tensors: Iterable[torch.Tensor]) -> bool | None:
    """Whether all tensors have data; None without tensors."""
    found = list(tensors)
    return has_data(*found) if found else None


def is_traced(args: Any, output: Any) -> bool:
    """Whether a call is part of a trace in the middle of a model with data."""
    # every operator call comes here, and nearly all of them end at the first tensor
    first = output if isinstance(output, torch.Tensor) else _first((output, args))
    if first is not None and (isinstance(first, OF_TRACES) or first.is_meta):
        return True
    return bool(getattr(_symbolic_trace, "_is_fx_tracing_flag", False))


def is_torchscript_tracing() -> bool:
    """Whether `torch.jit.trace` runs; inside of an operator it does not say so."""
    return tracing_state() is not None


def _first(values: Any) -> torch.Tensor | None:
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (tuple, list)) and (found := _first(value)) is not None:
            return found
    return None
