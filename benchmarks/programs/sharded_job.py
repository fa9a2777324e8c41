"""Records 4 ranks of FSDP2: `python sharded_job.py RUN LAYERS`; with 24 layers, a step has 72 collectives."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from forked_ranks import fork
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import distprof

RANKS, WIDTH, STEPS = 4, 64, 14


class Block(nn.Module):
    """Two linear layers with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the input plus the output of the two layers."""
        added: Tensor = self.down(torch.relu(self.up(x)))
        return x + added


def train(run: str, layers: int) -> None:
    """Trains on one rank."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = nn.Sequential(*(Block() for _ in range(layers)))
    with distprof.record(run):
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(32, WIDTH)).sum().backward()
            optimizer.step()


if __name__ == "__main__":
    fork(RANKS, train, sys.argv[1], int(sys.argv[2]))
