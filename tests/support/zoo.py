"""Models of torchvision and transformers with random weights, and totals of FLOP counters for them.

Tests are skipped if a package is missing.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import distprof
from support.operators import define_libraries

TOTALS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "torchvision_totals.json").read_text())["models"]
"""Model -> counter -> its total."""
QUICK = {"alexnet", "mobilenet_v2", "resnet18", "vit_b_16"}
"""One model for each kind of layers."""
EVERY_MODEL = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in TOTALS]
"""All models with totals, as parameters of tests."""


@cache
def _has_torchvision() -> bool:
    """Returns whether torchvision is installed; if so, defines its operators without kernels.

    A wheel built for CUDA cannot load its kernels with a CPU build of torch, and no model calls them.
    """
    if importlib.util.find_spec("torchvision") is None:
        return False
    define_libraries()  # defines the operators for which there are formulas, with their arguments
    from scripts import torchvision_operators  # defines the others

    return bool(torchvision_operators.LIBRARIES)


class Unfilled(TorchFunctionMode):
    """Skips filling meta tensors, which have no data; torch would take seconds to compute their shapes."""

    FILLS = ("normal_", "uniform_", "trunc_normal_", "erfinv_", "zero_", "fill_", "mul_", "add_", "clamp_")

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if args and getattr(args[0], "is_meta", False) and function.__name__ in self.FILLS:
            return args[0]
        return function(*args, **(kwargs or {}))


def torchvision_model(name: str, device: str = "meta", **kwargs: Any) -> nn.Module:
    """Returns a torchvision model in eval mode.

    Args:
        name: Name in `torchvision.models`.
        device: Device of its parameters; on meta they have no data and cost nothing.
        **kwargs: Arguments of its constructor.
    """
    if not _has_torchvision():
        pytest.skip("torchvision is not installed")
    import torchvision

    if name in ("googlenet", "inception_v3"):
        kwargs.setdefault("init_weights", False)  # otherwise they warn that this takes long
    # RegNet computes its widths with tensors, so it cannot be created on meta
    with torch.device("cpu" if name.startswith("regnet") else device), Unfilled():
        return getattr(torchvision.models, name)(weights=None, **kwargs).eval().to(device)


def transformers_model(name: str, config: str, device: str = "meta", **kwargs: Any) -> nn.Module:
    """Returns a transformers model in eval mode.

    Args:
        name: Name of its class.
        config: Name of the class of its configuration.
        device: Device of its parameters.
        **kwargs: Arguments of the configuration.
    """
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    _has_torchvision()  # transformers imports it if it is installed
    import transformers

    with torch.device(device), Unfilled():
        return getattr(transformers, name)(getattr(transformers, config)(**kwargs)).eval()


def image(name: str, device: str = "meta", *, grad: bool = False) -> torch.Tensor:
    """Returns one image of the size with which a torchvision model is published."""
    side = 299 if name == "inception_v3" else 224
    return torch.rand(1, 3, side, side, device=device, requires_grad=grad)


@cache
def torchvision_counts(name: str) -> distprof.Counts:
    """Returns the counts of a forward call in eval mode without gradients, as for most published numbers."""
    with torch.no_grad():
        return distprof.count(torchvision_model(name), image(name))
