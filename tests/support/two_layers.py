"""A model with two layers, and its FLOPs."""

from __future__ import annotations

import torch
from torch import nn

ROWS, WIDTH, HIDDEN, OUT = 3, 8, 16, 4
FIRST, SECOND = 2 * ROWS * WIDTH * HIDDEN, 2 * ROWS * HIDDEN * OUT
FORWARD = FIRST + SECOND
BACKWARD = FIRST + 2 * SECOND
"""FLOPs of backward; the input needs no gradient."""


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))


def rows(*, grad: bool = False) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, requires_grad=grad)
