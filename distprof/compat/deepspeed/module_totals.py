"""Totals of single modules, as functions of the module alone."""

from __future__ import annotations

from torch import nn

from distprof.compat.deepspeed.measurement import profile_of_module


def get_module_flops(module: nn.Module) -> int:
    """FLOPs of a module of a model that is being profiled, submodules included.

    Raises:
        UsageError: No profile has this module. So do the other functions.
    """
    return profile_of_module(module).flops


def get_module_macs(module: nn.Module) -> int:
    """Multiply-accumulates likewise."""
    return profile_of_module(module).macs


def get_module_duration(module: nn.Module) -> float:
    """Seconds likewise; the children's for a module that is never called itself, like ModuleList."""
    return profile_of_module(module).seconds
