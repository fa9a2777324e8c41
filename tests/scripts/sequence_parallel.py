"""Tensor parallel with sequence parallel norms by DTensor: gathers and scatters of activations around every layer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

WIDTH, LENGTH, DEPTH = 8, 8, 4
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


model = nn.Sequential(*(Block() for _ in range(DEPTH)))
for block in model:
    parallelize_module(block, mesh, {
        "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False)})
model = parallelize_module(model, mesh, PrepareModuleInput(
    input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    out = model(torch.randn(3, LENGTH, WIDTH))
    (out.full_tensor() if hasattr(out, "full_tensor") else out).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
