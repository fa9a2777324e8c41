"""Modules that take known ticks of a clock, which nothing else moves, and the latencies found of them."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from distprof.timing.latency import Latency
from distprof.timing.repetition import measure_latency


class Clock:
    """Stands still unless work moves it."""

    resolves_at_once = True

    def __init__(self) -> None:
        self.now = 0

    def mark(self) -> int:
        return self.now

    def resolve(self, mark: int) -> int:
        return mark

    def settle(self) -> None:
        pass


class Cost(torch.autograd.Function):
    """Takes `forward` and `backward` ticks of a clock."""

    @staticmethod
    def forward(ctx, x, weight, clock, forward, backward):
        ctx.clock, ctx.ticks, ctx.needs = clock, backward, ctx.needs_input_grad
        ctx.save_for_backward(x)
        clock.now += forward
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        (_saved,) = ctx.saved_tensors  # repeats the forward call where it is checkpointed
        ctx.clock.now += ctx.ticks
        return grad if ctx.needs[0] else None, grad.sum().reshape(1) if ctx.needs[1] else None, None, None, None


class Worker(nn.Module):
    """Costs what it says; its weight gets a gradient, so it has a backward even where its input needs none."""

    def __init__(self, clock: Clock, forward: int, backward: int) -> None:
        super().__init__()
        self._clock, self.costs = weakref.ref(clock), (forward, backward)  # what a model holds is put back
        self.weight = nn.Parameter(torch.ones(1))

    @property
    def clock(self) -> Clock:
        clock = self._clock()
        assert clock is not None
        return clock

    def forward(self, x):
        return Cost.apply(x, self.weight, self.clock, *self.costs)


class Tied(nn.Module):
    """Calls one child several times in turn with work of its own between."""

    def __init__(self, child: nn.Module, own: nn.Module, times: int) -> None:
        super().__init__()
        self.child, self.times = child, times
        self.own = [own]  # hidden from the tree of modules

    def forward(self, x):
        for _ in range(self.times):
            x = Cost.apply(self.child(x), self.own[0].weight, self.own[0].clock, *self.own[0].costs)
        return x


class Attention(nn.Module):
    """q, k and v share one input; own work lies between them; v runs on a view, changed in place; weights go unused."""

    def __init__(self, q: nn.Module, k: nn.Module, v: nn.Module, own: nn.Module) -> None:
        super().__init__()
        self.q, self.k, self.v = q, k, v
        self.own = [own]

    def work(self, x):
        return Cost.apply(x, self.own[0].weight, self.own[0].clock, *self.own[0].costs)

    def forward(self, x):
        q = self.work(self.q(x).view(-1)).view_as(x)
        k = self.k(x)
        v = self.v(x)
        k += 1
        v.view(-1).mul_(2)
        out = self.work(q + k + v)
        return {"out": out + x, "weights": (out * 2).mean()}


def totals(found: dict, model: nn.Module) -> dict[str, Latency]:
    return {site.name: latency for site, latency in found.items() if site.model.root.module() is model}


def measured(model: nn.Module, *, steps: int = 1, needs_grad: bool = False, pick=lambda out: out) -> dict[str, Latency]:
    x = torch.ones(2, 3, requires_grad=needs_grad)

    def step() -> None:
        pick(model(x)).sum().backward()

    return totals(measure_latency(step, warmup=1, runs=steps), model)


def selves(found: dict[str, Latency], *phases: str) -> dict[str, tuple]:
    return {name: tuple(getattr(latency, f"{phase}_self_ns") for phase in phases)
            for name, latency in found.items()}


def check_sums(found: dict[str, Latency]) -> None:
    """Self times add up to the root, in each phase."""
    for phase in ("fwd", "bwd", "recompute"):
        own = [getattr(latency, f"{phase}_self_ns") for latency in found.values()]
        assert sum(filter(None, own)) == (getattr(found[""], f"{phase}_ns") or 0)
