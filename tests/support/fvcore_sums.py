"""Sums over a whole model as in distprof's drop-in for fvcore."""

from __future__ import annotations

from collections import Counter

from torch import nn

from distprof.compat.fvcore.module_sums import ModuleNames, sum_by_module
from distprof.peers import fvcore


def sums(counts) -> tuple[Counter, Counter]:
    """Returns the drop-in's totals of the model: FLOPs by operator, and calls of operators without a rule."""
    found = sum_by_module(counts, ModuleNames(nn.Module()), fvcore.FLOPS, fvcore.FREE, "owner")
    return found.counted[""], found.unsupported[""]
