"""Small models with module trees and operators that FLOP counters often get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import register_dataclass

ROWS = torch.randn(4, 6)


class Rung(nn.Module):
    """A residual block: a depthwise convolution over the steps of a series, then a linear layer over its features."""

    def __init__(self, features: int, kernel: int) -> None:
        super().__init__()
        self.along = nn.Conv1d(features, features, kernel, groups=features, padding=kernel // 2)
        self.across = nn.Linear(features, features, bias=False)

    def forward(self, x):
        return x + self.across(F.relu(self.along(x)).transpose(1, 2)).transpose(1, 2)


class Ladder(nn.Module):
    """Modules in a list that is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.rungs = nn.ModuleList(Rung(6, kernel) for kernel in (3, 5))
        self.out = nn.Linear(48, 4)

    def forward(self, x):
        for rung in self.rungs:
            x = rung(x)
        return self.out(x.flatten(1))


class Routes(nn.Module):
    """Takes one of two routes; the other never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Identity()
        self.routes = nn.ModuleDict({"far": nn.Sequential(nn.Linear(6, 3), nn.Tanh()), "near": nn.Linear(6, 3)})
        self.scale = nn.LayerNorm(3)

    def forward(self, x):
        return self.scale(self.routes["near"](self.gate(x)))


class Halving(nn.Module):
    """Merges neighbours and calls itself recursively until one is left."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.merge = width, nn.Linear(2 * width, width)

    def forward(self, x):
        return x if x.shape[1] == 1 else self(self.merge(x.reshape(x.shape[0], -1, 2 * self.width)))


class Tower(nn.Module):
    def __init__(self, space: nn.Module) -> None:
        super().__init__()
        self.own, self.space = nn.Linear(6, 8), space

    def forward(self, x):
        return self.space(torch.sigmoid(self.own(x)))


class Towers(nn.Module):
    """Two towers share a layer, and a third layer has two names."""

    def __init__(self) -> None:
        super().__init__()
        space = nn.Linear(8, 4)
        self.left, self.right = Tower(space), Tower(space)
        self.score = self.rank = nn.Linear(4, 1)

    def forward(self, x):
        left, right = self.left(x), self.right(x.flip(0))
        return self.score(left * right) - self.rank(right)


class Codec(nn.Module):
    """Does its work in methods other than forward."""

    def __init__(self) -> None:
        super().__init__()
        self.pack, self.unpack = nn.Linear(6, 2), nn.Linear(2, 6)

    def encode(self, x):
        return self.pack(x)

    def decode(self, x):
        return self.unpack(x)

    def forward(self, x):
        return self.decode(self.encode(x))


class Denoiser(nn.Module):
    """Never calls its codec, only methods of it."""

    def __init__(self) -> None:
        super().__init__()
        self.codec, self.clean = Codec(), nn.Linear(2, 2)

    def forward(self, x):
        return self.codec.decode(self.clean(self.codec.encode(x)))


class Onion(nn.Module):
    """A module nested in layers that only call it; a table shows them as one row."""

    def __init__(self, core: nn.Module, layers: int = 1) -> None:
        super().__init__()
        self.inner = Onion(core, layers - 1) if layers > 1 else core

    def forward(self, x):
        return self.inner(x)


class TwoHeads(nn.Module):
    """A convolution, pooling and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, (3, 1), stride=2, padding=(1, 0))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.kind, self.place = nn.Linear(4, 5), nn.Linear(4, 2)

    def forward(self, x):
        x = self.pool(F.max_pool2d(F.relu(self.body(x)), (2, 1))).flatten(1)
        return self.kind(x), self.place(x)


class Imaging(nn.Module):
    """Convolutions, all kinds of norms, resampling and all kinds of products."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(6, 12, 3, stride=2, padding=1, groups=3)
        self.up = nn.ConvTranspose2d(12, 6, 4, stride=2, padding=1, groups=2)
        self.norms = nn.ModuleDict({
            "batch": nn.BatchNorm2d(6), "plain_batch": nn.BatchNorm2d(6, affine=False),
            "group": nn.GroupNorm(3, 6), "plain_group": nn.GroupNorm(3, 6, affine=False),
            "instance": nn.InstanceNorm2d(6, affine=True), "plain_instance": nn.InstanceNorm2d(6),
            "layer": nn.LayerNorm(8), "plain_layer": nn.LayerNorm(8, elementwise_affine=False)})
        self.pool = nn.AdaptiveAvgPool2d((2, 4))

    def forward(self, x):
        x = F.hardswish(self.up(self.down(x)))
        for norm in self.norms.values():
            x = norm(x)
        x = F.grid_sample(x, torch.stack([x.amax(1), x.amin(1)], -1).tanh(), align_corners=True)
        for mode, factor in (("nearest", 2), ("bilinear", 0.5), ("bicubic", 2)):
            x = F.interpolate(x, scale_factor=factor, mode=mode)
        first, second = self.pool(x), x[:, :, :2, :4]
        left, right = first.flatten(2), second.flatten(2)
        products = [torch.einsum(equation, left, right) for equation in ("bip,biq->bpq", "bip,bjp->bji", "bip,bjq->ij")]
        return (*products, first @ second.transpose(2, 3), torch.bmm(left, right.transpose(1, 2)),
                torch.mm(left[0], right[1].t()), torch.addmm(left[1], products[2], right[0]))


@dataclass
class Reading:
    level: torch.Tensor
    spread: torch.Tensor


register_dataclass(Reading)


class Gauge(nn.Module):
    """Takes a keyword argument and returns a dataclass: neither can be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Linear(6, 3)

    def forward(self, x, *, weights):
        weighted = x * weights
        return Reading(level=self.level(weighted), spread=weighted.std(0))


IMAGES = torch.randn(2, 6, 10, 8)
NETS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "Ladder": (Ladder, torch.randn(2, 6, 8)),
    "Routes": (Routes, ROWS),
    "Halving": (lambda: Halving(5), torch.randn(3, 8, 5)),
    "Towers": (Towers, torch.randn(5, 6)),
    "Denoiser": (Denoiser, torch.randn(3, 6)),
    "Onion": (lambda: Onion(nn.Sequential(nn.Linear(6, 6, bias=False)), 3), ROWS),
    "TwoHeads": (TwoHeads, torch.randn(2, 3, 8, 6)),
    "Imaging": (Imaging, IMAGES),
    "Imaging.eval": (lambda: Imaging().eval(), IMAGES),
    "DataParallel": (lambda: nn.DataParallel(nn.Linear(6, 3)), ROWS),
    "GELU": (lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout(), nn.Linear(4, 6, False)),
             ROWS),
    "LSTM": (lambda: nn.LSTM(4, 5, 2), torch.randn(3, 2, 4)),
    "LSTMCell": (lambda: Onion(nn.LSTMCell(6, 5)), ROWS),
    "GRUCell": (lambda: Onion(nn.GRUCell(6, 5)), ROWS),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)),
}
"""Name -> function that creates the model, and its input."""
