"""What gradients pass, and numbers that are only looked at; truth is whether a gradient arrives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from distprof.model.tensors import in_autograd_function, reaches_autograd


class Joined(torch.autograd.Function):
    """As the regions of tensor parallelism are written."""

    seen: bool | None = None

    @staticmethod
    def forward(ctx, x):
        Joined.seen = reaches_autograd([x.clone()])
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def activation() -> torch.Tensor:
    return nn.Linear(4, 4)(torch.ones(2, 4))


def test_what_an_autograd_function_writes():
    x = activation()
    Joined.apply(x).sum().backward()
    assert Joined.seen is True and not in_autograd_function()


@pytest.mark.parametrize(("make", "expected"), [
    (lambda x: x, True), (lambda x: x * 2, True), (lambda x: x.detach().clone(), False),
    (lambda _: torch.ones(1), False), (lambda x: x.detach().mean(), False), (lambda x: x.detach().argmax(-1), False),
    (lambda _: torch.empty(2, 4), False),
    (lambda x: x.data, None), (lambda x: x.detach(), None), (lambda x: x.detach().view(-1), None)])
def test_tensors(make, expected):
    x = activation()
    assert reaches_autograd([make(x)]) is expected


@pytest.mark.parametrize("write", [lambda x: x, lambda x: x.data, lambda x: x.detach()])
def test_no_tensor_through_which_gradients_are_changed_is_called_a_number_to_look_at(write):
    """What is written in place changes what the next layer sees, and so the gradient of its weight."""
    gradients = []
    for factor in (1, 3):
        torch.manual_seed(0)
        x, last = activation(), nn.Linear(4, 1)
        with torch.no_grad():
            written = write(x)
            assert reaches_autograd([written]) is not False
            written.mul_(factor)
        last(x).sum().backward()
        gradients.append(last.weight.grad)
    assert not torch.equal(*gradients)
