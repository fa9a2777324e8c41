"""Sums over a whole model as fvcore's drop-in makes them."""

from __future__ import annotations

from collections import Counter

from torch import nn

from distprof.compat.fvcore.module_sums import ModuleNames, sum_by_module
from distprof.peers import fvcore


def sums(counts) -> tuple[Counter, Counter]:
    """What the drop-in has for the whole model: flops by operator, and calls of operators without a rule."""
    found = sum_by_module(counts, ModuleNames(nn.Module()), fvcore.FLOPS, fvcore.FREE, "owner")
    return found.counted[""], found.unsupported[""]
