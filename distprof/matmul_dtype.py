"""The dtype a model multiplies in: module calls come in, one name goes out; autocast and FSDP policies are seen."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from distprof.scopes import Frame
from distprof.tensors import tensors

LOOKUPS = (nn.Embedding, nn.EmbeddingBag)
"""They own a matrix and multiply nothing."""


class MatmulDtype:
    """Listens to module calls: what a module that owns a matrix returns has the dtype it multiplied in.

    The dtype of parameters would tell another: autocast and mixed precision leave them in float32.
    """

    def __init__(self) -> None:
        self._params: Counter[str] = Counter()

    def enter(self, frame: Frame) -> None:
        """The result tells more."""

    def exit(self, frame: Frame, _args: Any, _kwargs: Any, result: Any) -> None:
        """Weighs the dtype of the result by the matrices that made it."""
        module = frame.module
        size = sum(parameter.numel() for parameter in module._parameters.values()
                   if parameter is not None and parameter.dim() > 1)
        if size and not isinstance(module, LOOKUPS):
            first = next((tensor for tensor in tensors(result) if tensor.is_floating_point()), None)
            if first is not None:
                self._params[_name(module, first)] += size

    def name(self) -> str | None:
        """The dtype of most of the matrices, like bfloat16 or tf32; None where no call was seen."""
        return max(self._params, key=lambda name: self._params[name], default=None)


def _name(module: nn.Module, result: torch.Tensor) -> str:
    if result.dtype == torch.float32 and result.is_cuda:
        backends: Any = torch.backends
        switch = backends.cudnn.conv if isinstance(module, nn.modules.conv._ConvNd) else backends.cuda.matmul
        if switch.fp32_precision == "tf32":
            return "tf32"
    return str(result.dtype).removeprefix("torch.")
