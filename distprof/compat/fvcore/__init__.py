"""`from distprof.compat.fvcore import FlopCountAnalysis`: fvcore's names and numbers, without its tracing.

What a script written for fvcore passes comes in, what fvcore would report goes out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from torch import nn

from distprof.compat.fvcore.analysis import Handle, JitModelAnalysis, get_shape
from distprof.compat.fvcore.text import flop_count_str, flop_count_table, parameter_count, parameter_count_table
from distprof.peers.fvcore import ACTIVATIONS, FLOPS

__all__ = ["ActivationCountAnalysis", "FlopCountAnalysis", "Handle", "JitModelAnalysis", "activation_count",
           "flop_count", "flop_count_str", "flop_count_table", "get_shape", "parameter_count",
           "parameter_count_table"]


class FlopCountAnalysis(JitModelAnalysis):
    """Flops by module and operator in fvcore's convention: 1 multiply-accumulate is 1 flop.

    Example:
        >>> flops = FlopCountAnalysis(model, torch.randn(1, 3, 224, 224))
        >>> flops.total(), flops.by_operator(), flops.unsupported_ops()
    """

    def __init__(self, model: nn.Module, inputs: Any = (), kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, inputs, kwargs)
        self.set_op_handle(**FLOPS)


class ActivationCountAnalysis(JitModelAnalysis):
    """Elements that convolutions and matrix products put out, by module and operator."""

    def __init__(self, model: nn.Module, inputs: Any = (), kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, inputs, kwargs)
        self.set_op_handle(**ACTIVATIONS)


def flop_count(model: nn.Module, inputs: Any, supported_ops: Mapping[str, Handle | None] | None = None,
               ) -> tuple[defaultdict[str, float], Counter[str]]:
    """Flops by operator in 10^9, and the calls of operators without a handle.

    Args:
        model: The model to run.
        inputs: Its positional arguments.
        supported_ops: Handles beside or in place of the usual ones.
    """
    return _scaled(FlopCountAnalysis(model, inputs).set_op_handle(**(supported_ops or {})), 1e9)


def activation_count(model: nn.Module, inputs: Any, supported_ops: Mapping[str, Handle | None] | None = None,
                     ) -> tuple[defaultdict[str, float], Counter[str]]:
    """Activations by operator in 10^6, and the calls of operators without a handle; arguments as of `flop_count`."""
    return _scaled(ActivationCountAnalysis(model, inputs).set_op_handle(**(supported_ops or {})), 1e6)


def _scaled(analysis: JitModelAnalysis, unit: float) -> tuple[defaultdict[str, float], Counter[str]]:
    sums = {name: number / unit for name, number in analysis.by_operator().items()}
    return defaultdict(float, sums), analysis.unsupported_ops()
