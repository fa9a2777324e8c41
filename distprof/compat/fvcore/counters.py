"""fvcore's analyses of flops and of activations, as classes and as functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from torch import nn

from distprof.compat.fvcore.analysis import JitModelAnalysis
from distprof.compat.fvcore.handles import Handle
from distprof.peers.fvcore_rules import ACTIVATIONS, FLOPS

Totals = tuple[defaultdict[str, float], Counter[str]]
"""Sums by operator, and the calls of operators without a handle."""


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


def flop_count(model: nn.Module, inputs: Any, supported_ops: Mapping[str, Handle | None] | None = None) -> Totals:
    """Flops in 10^9.

    Args:
        model: The model to run.
        inputs: Its positional arguments.
        supported_ops: Handles beside or in place of the usual ones.
    """
    return _totals(FlopCountAnalysis(model, inputs), supported_ops, 1e9)


def activation_count(model: nn.Module, inputs: Any, supported_ops: Mapping[str, Handle | None] | None = None) -> Totals:
    """Activations in 10^6; arguments as of `flop_count`."""
    return _totals(ActivationCountAnalysis(model, inputs), supported_ops, 1e6)


def _totals(analysis: JitModelAnalysis, handles: Mapping[str, Handle | None] | None, unit: float) -> Totals:
    sums = analysis.set_op_handle(**(handles or {})).by_operator()
    return defaultdict(float, {name: number / unit for name, number in sums.items()}), analysis.unsupported_ops()
