"""Data-parallel ranks whose modules sleep: `napping.py STEPS LAYER_MS NAP_MS [EVERY [RANK [TIMES]]]`.

Each of three layers sleeps LAYER_MS in its forward, as if it computed. `layers.1.mlp` sleeps NAP_MS besides: on RANK,
or on all ranks where that is -1, in each EVERY-th step. With TIMES, it does all that it does so many times in these
steps, once in the others, and sleeps in all of them.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 32
num_steps, layer_s, nap_s = int(sys.argv[1]), float(sys.argv[2]) / 1000, float(sys.argv[3]) / 1000
every, napper, times = (int(sys.argv[index]) if len(sys.argv) > index else default
                        for index, default in ((4, 1), (5, -1), (6, 0)))
step = 0


class Mlp(nn.Module):
    def __init__(self, *, naps: bool) -> None:
        super().__init__()
        self.up, self.naps = nn.Linear(WIDTH, WIDTH), naps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_turn = self.naps and napper in (-1, dist.get_rank()) and step % every == every - 1
        for _ in range(max(times, 1) if is_turn else 1):
            time.sleep(nap_s if is_turn or (self.naps and times) else 0)
            x = torch.relu(self.up(x))
        return x


class Layer(nn.Module):
    def __init__(self, *, naps: bool) -> None:
        super().__init__()
        self.mlp = Mlp(naps=naps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(layer_s)
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(naps=index == 1) for index in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model(), bucket_cap_mb=0.005)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while step < num_steps:
    model(torch.ones(4, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
dist.destroy_process_group()
