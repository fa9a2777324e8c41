"""Small models with the module trees that make counters stumble; the numbers in the docstrings are fvcore's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import register_dataclass


class Inner(nn.Module):
    """conv 20, fc 100."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 1)
        self.fc = nn.Linear(10, 10)

    def forward(self, x):
        return self.fc(self.conv(x.reshape(-1, 2, 5)).flatten(1))


class Nested(nn.Module):
    """conv 240, fc 200, submod 120: 560."""

    def __init__(self) -> None:
        super().__init__()
        self.submod = Inner()
        self.fc = nn.Linear(10, 20)
        self.conv = nn.Conv1d(4, 6, 2, padding=1)

    def forward(self, x):
        x = self.conv(x.reshape(-1, 4, 4)).flatten(1)
        return self.submod(F.relu(self.fc(x[:, :10]))[:, 10:])


class Unused(nn.Module):
    """110; fc2 is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 1)
        self.same = nn.Identity()
        self.bag = nn.ModuleDict({"unused": nn.Sequential(nn.Linear(3, 3))})

    def forward(self, x):
        return self.fc3(self.same(self.fc1(x)))


class Repeated(nn.Module):
    """fc1 3 x 100, fc2 2 x 100: 500."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(10, 10), nn.Linear(10, 10)

    def forward(self, x):
        for _ in range(3):
            x = self.fc1(x)
        return self.fc2(self.fc2(x))


class Other(nn.Module):
    """Works in another method than forward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(10, 10)

    def work(self, x):
        return self.fc(x)


class NonForward(nn.Module):
    """110: submod.fc 100, fc 10."""

    def __init__(self) -> None:
        super().__init__()
        self.submod, self.fc = Other(), nn.Linear(10, 1)

    def forward(self, x):
        return self.fc(self.submod.work(x))


class Holder(nn.Module):
    def __init__(self, submod: nn.Module) -> None:
        super().__init__()
        self.submod = submod

    def forward(self, x):
        return self.submod(x)


class SharedTwice(nn.Module):
    """220: one layer of 100 below two parents, one of 10 under two names."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.Linear(10, 10)
        self.submod1, self.submod2 = Holder(inner), Holder(inner)
        self.multiname1 = self.multiname2 = nn.Linear(10, 1)

    def forward(self, x):
        x = self.submod2(self.submod1(x))
        return self.multiname1(x) + self.multiname2(x)


class Recursive(nn.Module):
    """10: calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(10, 1)

    def forward(self, x, times: int = 3):
        return self(x, times - 1) if times else self.fc(x)


class ThreeNet(nn.Module):
    """conv 4,000, adaptive_avg_pool2d 2,000, linear 72, for 4 x 2 x 10 x 10."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(2, 5, 1), nn.AdaptiveAvgPool2d((1, 1))
        self.linear1, self.linear2 = nn.Linear(5, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.linear2(self.linear1(self.pool(self.conv(x)).flatten(1)))


class LeNet(nn.Module):
    """274,656 for 1 x 1 x 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 16, 3)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 6 * 6, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))))


class Chain(nn.Module):
    """Modules with one child each: a table shows them as one row."""

    def __init__(self) -> None:
        super().__init__()
        self.a1 = Holder(Holder(nn.Sequential(nn.Linear(10, 10, bias=False))))

    def forward(self, x):
        return self.a1(x)


class Images(nn.Module):
    """Norms, grouped and transposed convolutions, resizing, sampling, products."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped, self.up = nn.Conv2d(8, 8, 3, groups=4, padding=1), nn.ConvTranspose2d(8, 4, 3, stride=2)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True),
                                    nn.InstanceNorm2d(4), nn.GroupNorm(2, 4, affine=False),
                                    nn.BatchNorm2d(4, affine=False)])
        self.act, self.pool = nn.Hardswish(inplace=True), nn.AdaptiveAvgPool2d(3)

    def forward(self, x):
        x = self.act(self.up(self.grouped(x)))
        for norm in self.norms:
            x = norm(x)
        grid = torch.stack([x.mean(1), x.sum(1)], -1)
        x = F.grid_sample(x, torch.tanh(grid), align_corners=False)
        for mode in ("nearest", "bilinear", "bicubic"):
            x = F.interpolate(x, scale_factor=2, mode=mode)
        x = torch.einsum("nchw,ncd->nhd", x, x.flatten(2)[:, :, :7])
        return self.pool(x @ x.transpose(1, 2)), torch.bmm(x, x.transpose(1, 2))


@dataclass
class Result:
    logits: torch.Tensor
    hidden: torch.Tensor


register_dataclass(Result)


class Modern(nn.Module):
    """Keyword arguments in, a dataclass out: neither can be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(10, 3)

    def forward(self, x, *, scale):
        hidden = x * scale
        return Result(logits=self.fc(hidden), hidden=hidden)
