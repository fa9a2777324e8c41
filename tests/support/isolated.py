"""A model that fails, and the state of models and random generators that a call must not change."""

from __future__ import annotations

import random

import numpy
import torch
from torch import nn

from support.left_behind import traces_of_us


class Raises(nn.Module):
    def forward(self, x):
        torch.mm(x, x)
        raise KeyError("inside")


def state(model: nn.Module) -> dict[str, object]:
    return {**traces_of_us(), "function modes": torch._C._len_torch_function_stack(),
            "torch": torch.get_rng_state().tolist(), "python": random.getstate(),
            "numpy": numpy.random.get_state()[1].tolist(), "training": [sub.training for sub in model.modules()],
            "buffers": [buffer.tolist() for buffer in model.buffers()],
            "gradients": [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
            "hooks": [len(sub._forward_hooks) for sub in model.modules()], "attributes": sorted(vars(model))}
