"""A job in which ranks are late for a known reason: `stragglers.py CAUSE[,CAUSE] [MILLISECONDS] [STEPS]`.

Causes: none, module (forward of layers.1.mlp on rank 2), backward (of the same), loader (rank 1), batch (rank 3 has
twice the samples), host (rank 2, between forward and backward), optimizer (rank 1). With `mesh` among them the job is
tp2 x dp2, and `module` is on rank 1, `loader` on rank 2. In the folder ARRIVALS each rank writes to
arrivals<rank>.json when it came to each all_reduce of its pair; without `mesh`, when it had its last gradient.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

causes = sys.argv[1].split(",")
seconds = float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.02
num_steps = int(sys.argv[3]) if len(sys.argv) > 3 else 12
arrivals: list[int] = []
WIDTH, BATCH = 16, 2


class Slow(torch.autograd.Function):
    """Sleeps when its gradient is computed."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(seconds)
        return gradient


class Mlp(nn.Module):
    def __init__(self, *, forward: bool, backward: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.sleeps, self.sleeps_backward = forward, backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sleeps:
            time.sleep(seconds)
        x = self.down(torch.relu(self.up(x)))
        return Slow.apply(x) if self.sleeps_backward else x


class Layer(nn.Module):
    def __init__(self, group: dist.ProcessGroup | None, *, forward: bool = False, backward: bool = False) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Mlp(forward=forward, backward=backward)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mlp(self.norm(x))
        if self.group is not None:  # as tensor parallelism adds partial results
            arrivals.append(time.time_ns())
            dist.all_reduce(y.detach(), group=self.group)
        return x + y


class Model(nn.Module):
    def __init__(self, group: dist.ProcessGroup | None, *, forward: bool, backward: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(
            Layer(group, forward=forward and index == 1, backward=backward and index == 1) for index in range(3)))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


class Data(Dataset):
    def __init__(self, *, slow: bool, batch: int) -> None:
        self.slow, self.batch = slow, batch

    def __len__(self) -> int:
        return num_steps * self.batch

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.slow and index % self.batch == 0:
            time.sleep(seconds)
        return torch.ones(16, WIDTH)


dist.init_process_group("gloo")
rank = dist.get_rank()
on_mesh = "mesh" in causes
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")) if on_mesh else None
tensor_group = mesh.get_group("tp") if mesh is not None else None
module_rank, loader_rank = (1, 2) if on_mesh else (2, 1)
torch.manual_seed(0)
model = DistributedDataParallel(
    Model(tensor_group, forward="module" in causes and rank == module_rank,
          backward="backward" in causes and rank == module_rank),
    process_group=mesh.get_group("dp") if mesh is not None else None, bucket_cap_mb=0.02)
if not on_mesh:
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _: arrivals.append(time.time_ns()))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
if "optimizer" in causes and rank == 1:
    optimizer.register_step_pre_hook(lambda *_: time.sleep(seconds))
size = BATCH * 512 if "batch" in causes else BATCH
size *= 2 if "batch" in causes and rank == 3 else 1
loader = DataLoader(Data(slow="loader" in causes and rank == loader_rank, batch=size), batch_size=size)
for batch in loader:
    loss = model(batch).square().mean()
    if "host" in causes and rank == 2:
        time.sleep(seconds)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if "ARRIVALS" in os.environ:
    Path(os.environ["ARRIVALS"], f"arrivals{rank}.json").write_text(json.dumps(arrivals))
dist.destroy_process_group()
