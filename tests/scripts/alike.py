"""A data-parallel job of which each run is like the others: `alike.py [STEPS] [PRODUCTS] [NAP]`.

Four layers of the same class multiply matrices ten times a call, and sleep NAP ms; `layers.2` multiplies PRODUCTS times
and sleeps by as much longer: with 12 it is a fifth slower. Its parameters stay the same.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
products = int(sys.argv[2]) if len(sys.argv) > 2 else 10
nap = float(sys.argv[3]) / 1000 if len(sys.argv) > 3 else 0.0
WIDTH, BATCH, USUAL = 256, 32, 10


class Layer(nn.Module):
    def __init__(self, products: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH ** 0.5)
        self.products = products

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(nap * self.products / USUAL)
        for _ in range(self.products):
            x = torch.tanh(x @ self.weight)
        return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(products if index == 2 else USUAL) for index in range(4)))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for _ in range(num_steps):
    loss = model(torch.randn(BATCH, WIDTH)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
