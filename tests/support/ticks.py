"""Modules that advance a simulated clock by known ticks, and their measured latencies."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from distprof.timing.latency import Latency
from distprof.timing.repetition import measure_latency


class Clock:
    """A clock that only simulated work advances."""

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
    """Advances a clock by `forward` and `backward` ticks."""

    @staticmethod
    def forward(ctx, x, weight, clock, forward, backward):
        ctx.clock, ctx.ticks, ctx.needs = clock, backward, ctx.needs_input_grad
        ctx.save_for_backward(x)
        clock.now += forward
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        (_saved,) = ctx.saved_tensors  # triggers recomputation if checkpointed
        ctx.clock.now += ctx.ticks
        return grad if ctx.needs[0] else None, grad.sum().reshape(1) if ctx.needs[1] else None, None, None, None


class Worker(nn.Module):
    """A module of known cost; its weight needs a gradient, so it has a backward even if its input needs none."""

    def __init__(self, clock: Clock, forward: int, backward: int) -> None:
        super().__init__()
        self._clock, self.costs = weakref.ref(clock), (forward, backward)  # weak: state of a model is restored
        self.weight = nn.Parameter(torch.ones(1))

    @property
    def clock(self) -> Clock:
        clock = self._clock()
        assert clock is not None
        return clock

    def forward(self, x):
        return Cost.apply(x, self.weight, self.clock, *self.costs)


class Tied(nn.Module):
    """Calls a child several times, with own work after each call."""

    def __init__(self, child: nn.Module, own: nn.Module, times: int) -> None:
        super().__init__()
        self.child, self.times = child, times
        self.own = [own]  # in a list to hide it from the module tree

    def forward(self, x):
        for _ in range(self.times):
            x = Cost.apply(self.child(x), self.own[0].weight, self.own[0].clock, *self.own[0].costs)
        return x


class Attention(nn.Module):
    """q, k and v share an input, with own work between them; v is changed in place by a view; weights are unused."""

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
    """Checks that self times add up to the time of the root, in each phase."""
    for phase in ("fwd", "bwd", "recompute"):
        own = [getattr(latency, f"{phase}_self_ns") for latency in found.values()]
        assert sum(filter(None, own)) == (getattr(found[""], f"{phase}_ns") or 0)
