"""FLOPs of calls and small networks, by hand or as other counters publish them where they are right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support.counter import Counter
from support.peer_nets import TwoHeads
from support.products import PRODUCTS
from support.side_by_side import Sensors


def flops(function) -> int:
    with Counter() as counter:
        function()
    return sum(counter.by_op.values())


def rand(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=grad)


def variety() -> None:
    torch.mm(rand(4, 5), rand(5, 6))
    torch.addmm(rand(4, 6), rand(4, 5), rand(5, 6))
    torch.matmul(rand(5, 6), rand(6, 7))
    torch.einsum("ab,bc->ac", rand(6, 7), rand(7, 8))
    nn.Linear(9, 10)(rand(8, 9))


def expanded() -> None:
    product = torch.mm(rand(4, 5, grad=True), rand(5, 6))
    torch.bmm(product.unsqueeze(0).expand(7, -1, -1), rand(7, 6, 7)).sum().backward()


def twice() -> None:
    a = rand(4, 5, grad=True)
    for _ in range(2):
        a.mm(a.t()).sum().backward()


def transposed_loop() -> None:
    layer = nn.ConvTranspose2d(4, 8, 2, stride=2)
    for _ in range(50):
        layer(rand(1, 4, 30, 2)).sum().backward()


def autograd_function() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, left, right):
            ctx.save_for_backward(left, right)
            return left.mm(right)

        @staticmethod
        def backward(ctx, grad):
            left, right = ctx.saved_tensors
            return grad.mm(right.t()), left.t().mm(grad)

    Product.apply(rand(5, 5, grad=True), rand(5, 5, grad=True)).sum().backward()


def through_dicts() -> None:
    a, b = rand(10, 10, grad=True), rand(10, 10, grad=True)
    results = {"first": a.mm(b), "second": b.mm(a)}
    (results["first"] + results["second"]).sum().backward()


def scaled_mm() -> None:
    one = torch.ones(())
    left, right = rand(48, 80).to(torch.float8_e4m3fn), rand(112, 80).to(torch.float8_e4m3fn).t()
    torch.ops.aten._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16)


def convolution_and_its_gradients() -> None:
    F.conv_transpose2d(rand(1, 1, 2, 2, grad=True), rand(1, 1, 2, 2, grad=True)).sum().backward()


@pytest.mark.parametrize(("function", "expected"), [
    (variety, 3012),
    (autograd_function, 750),
    (through_dicts, 12_000),
    (scaled_mm, 860_160),
    (convolution_and_its_gradients, 3 * 32),
    *((function, 2 * macs) for function, macs in PRODUCTS),
    (lambda: Sensors()(rand(5, 3, 22)), 2 * 6_600),
    (lambda: TwoHeads()(rand(2, 3, 8, 6)), 2 * 920),
    (lambda: F.conv2d(rand(1, 1, 2, 2), rand(1, 1, 2, 2)), 8),
    (lambda: torch.mm(rand(10, 10), rand(10, 10), out=rand(10, 10)), 2_000),
    (lambda: torch.bmm(rand(3, 4, 5), rand(3, 5, 6)), 720),
    (lambda: [torch.addmm(rand(4, 6), rand(4, 5), rand(5, 6)) for _ in range(3)], 720),
    (lambda: torch.mm(rand(3, 4), rand(4, 5)), 2 * 60),
    (lambda: F.linear(rand(1, 16), rand(32, 16)), 2 * 512),
    (lambda: F.linear(rand(4, 16), rand(32, 16)), 2 * 2_048),
    (lambda: torch.bmm(rand(2, 3, 4), rand(2, 4, 5)), 2 * 120),
    (lambda: F.conv1d(rand(1, 3, 32), rand(16, 3, 3)), 2 * 4_320),
    (lambda: F.conv2d(rand(1, 3, 8, 8), rand(16, 3, 3, 3), padding=1), 2 * 27_648),
    (lambda: torch.einsum("bij,bjk->bik", rand(2, 3, 4), rand(2, 4, 5)), 2 * 120),
    (lambda: torch.einsum("bhqd,bhkd->bhqk", rand(2, 4, 16, 64), rand(2, 4, 16, 64)), 2 * 131_072),
    (lambda: F.conv2d(rand(1, 3, 32, 32), rand(12, 3, 5, 5), padding=1), 2 * 810_000),
    # ptflops adds a bias for each output element
    (lambda: F.conv2d(rand(1, 3, 224, 224), rand(2, 3, 3, 3)), 2 * (2_759_904 - 2 * 222 * 222)),
    (lambda: F.linear(rand(4, 5, 3), rand(2, 3)), 2 * 120),
    (lambda: torch.mm(rand(4, 5), rand(5, 6)), 240),
    (lambda: torch.baddbmm(rand(3, 4, 6), rand(3, 4, 5), rand(3, 5, 6)), 720),
    (lambda: F.conv2d(rand(2, 3, 6, 6), rand(6, 3, 4, 4), padding=1), 28_800),
    (lambda: F.conv1d(rand(2, 3, 6), rand(6, 3, 4), padding=1), 1_440),
    (expanded, 5_184),
    (twice, 960),
    (transposed_loop, 1_536_000),
    (lambda: torch.mv(rand(3, 4), rand(4)), 2 * 12),
    (lambda: nn.LSTM(16, 32)(rand(5, 1, 16)), 2 * 30_720),
    (lambda: nn.LSTM(32, 64, 2, bidirectional=True, batch_first=True)(rand(1, 10, 32)), 2 * 1_474_560),
    (lambda: F.conv2d(rand(1, 16, 8, 8), rand(16, 1, 3, 3), padding=1, groups=16), 2 * 9_216),
    (lambda: F.scaled_dot_product_attention(*(rand(1, 12, 64, 64) for _ in range(3))), 12_582_912),
])
def test_expected_numbers(function, expected):
    assert flops(function) == expected
