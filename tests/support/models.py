"""Small models whose numbers are easy to compute by hand."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def nap(seconds: float, slept: list[float]) -> None:
    """Sleeps and records the actual duration."""
    begin = time.perf_counter()
    time.sleep(seconds)
    slept.append(time.perf_counter() - begin)


class Sleep(torch.autograd.Function):
    """Sleeps in forward and backward."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        nap(module.forward_s, module.slept_forward)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        nap(ctx.module.backward_s, ctx.module.slept_backward)
        return grad, None


class Sleepy(nn.Module):
    """A module of known latency."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s
        self.slept_forward: list[float] = []
        self.slept_backward: list[float] = []

    def forward(self, x):
        return Sleep.apply(x, self)


class Residual(nn.Module):
    """x + linear(x), with own work before and after the child."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)
        self.weight = nn.Parameter(torch.ones(width, width))

    def forward(self, x):
        x = x @ self.weight
        return x + self.inner(x)


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.block = block
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


class Inplace(nn.Module):
    """Changes outputs of its children in place, which full backward hooks would break."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.linear(x)
        y += 1
        return {"out": self.relu(y)}


class Shared(nn.Module):
    """One layer under two names, called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = self.first

    def forward(self, x):
        return self.second(self.first(self.first(x)))
