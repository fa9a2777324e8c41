"""What measuring latency leaves alone: the graph with its gradients, memory, and torch after a failure."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from distprof.timing.repetition import measure_latency


def test_the_graph_and_its_memory_are_left_alone(clock):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    x = torch.randn(3, 4)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    plain, seen = gradients(), []
    measure_latency(lambda: seen.append(gradients()), runs=2)
    assert len(seen) == 2 and all(torch.equal(one, other) for again in seen for one, other in
                                  zip(plain, again, strict=True))


def test_no_activation_outlives_the_graph():
    model, alive = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), []
    handle = model[1].register_forward_hook(lambda *call: alive.append(weakref.ref(call[2])))

    def step() -> None:
        model(torch.randn(3, 4)).sum().backward()
        assert alive[-1]() is None

    gc.disable()
    try:
        measure_latency(step, runs=2)
    finally:
        gc.enable()
        handle.remove()


def test_hooks_are_gone_after_a_failure():
    from torch.nn.modules import module as nn_module

    with pytest.raises(ZeroDivisionError):
        measure_latency(lambda: 1 / 0)
    assert not nn_module._global_forward_hooks and not nn_module._global_forward_pre_hooks
