"""A small model in whose middle block one rank may be late, and its samples; for jobs of frameworks."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

WIDTH, DEPTH, LENGTH = 32, 3, 8
LATE_RANK = 2


class Block(nn.Module):
    def __init__(self, nap_s: float) -> None:
        super().__init__()
        self.nap_s, self.up, self.down = nap_s, nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.nap_s and dist.get_rank() == LATE_RANK:
            time.sleep(self.nap_s)
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, milliseconds: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(Block(milliseconds / 1000 if number == 1 else 0) for number in range(DEPTH)))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


class Samples(Dataset):
    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((LENGTH, WIDTH), float(index % 5))
