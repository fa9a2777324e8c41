"""Products and convolutions of all kinds, with their multiply-accumulates counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape)


PRODUCTS: list[tuple[Callable[[], torch.Tensor], int]] = [
    (lambda: F.linear(rand(3, 7), rand(2, 7)), 3 * 7 * 2),
    (lambda: F.linear(rand(2, 3, 4, 7), rand(5, 7)), 24 * 7 * 5),
    (lambda: F.conv1d(rand(2, 4, 9), rand(6, 4, 2), stride=3), 2 * 3 * 6 * 8),
    (lambda: F.conv2d(rand(3, 4, 7, 6), rand(8, 4, 3, 2)), 3 * (5 * 5) * 8 * 24),
    (lambda: F.conv2d(rand(1, 4, 8, 8), rand(2, 4, 3, 3), dilation=2), (4 * 4) * 2 * 36),
    (lambda: F.conv2d(rand(2, 6, 5, 5), rand(12, 2, 1, 3), groups=3), 2 * (5 * 3) * 12 * 6),
    (lambda: F.conv2d(rand(2, 6, 4, 4), rand(6, 1, 2, 2), stride=2, groups=6), 2 * (2 * 2) * 6 * 4),
    (lambda: F.conv3d(rand(1, 2, 4, 5, 6), rand(3, 2, 2, 2, 2)), (3 * 4 * 5) * 3 * 16),
    (lambda: F.conv_transpose1d(rand(2, 3, 7), rand(3, 4, 5), stride=2), 2 * 7 * 3 * 20),
    (lambda: F.conv_transpose2d(rand(2, 4, 3, 5), rand(4, 2, 2, 3), stride=(2, 3), output_padding=(1, 2), groups=2),
     2 * (3 * 5) * 4 * 12),
    (lambda: torch.matmul(rand(3, 8), rand(8, 5)), 3 * 8 * 5),
    (lambda: torch.matmul(rand(4, 2, 3, 8), rand(4, 2, 8, 5)), 8 * 3 * 8 * 5),
    (lambda: torch.matmul(rand(6, 3, 8), rand(8, 5)), 6 * 3 * 8 * 5),
    (lambda: torch.matmul(rand(1, 3, 8), rand(8, 5)), 3 * 8 * 5),
    (lambda: torch.bmm(rand(3, 4, 6), rand(3, 6, 2)), 3 * 4 * 6 * 2),
    (lambda: torch.mm(rand(2, 9), rand(9, 4)), 2 * 9 * 4),
    (lambda: torch.addmm(rand(4), rand(2, 9), rand(9, 4)), 2 * 9 * 4),
    (lambda: torch.einsum("zkl,zkm->zlm", rand(2, 3, 4), rand(2, 3, 5)), 2 * 3 * 4 * 5),
    (lambda: torch.einsum("zlk, zmk -> zml", rand(2, 3, 4), rand(2, 5, 4)), 2 * 3 * 4 * 5),
    (lambda: torch.einsum("kl,lkm->m", rand(3, 4), rand(4, 3, 5)), 3 * 4 * 5),
]
