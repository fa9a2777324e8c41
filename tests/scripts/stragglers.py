"""A job in which ranks are late for a known reason: `stragglers.py CAUSE[,CAUSE] [MILLISECONDS] [STEPS] [EVERY]`.

Causes: none, module (forward of layers.1.mlp on rank 2), backward (of the same), loader (rank 1), batch (rank 3 has
twice the samples), host (rank 2, between forward and backward), optimizer (rank 1). With `mesh` among them the job is
tp2 x dp2, and `module` is on rank 1, `loader` on rank 2. They are late in each EVERY-th step. In the folder ARRIVALS
each rank writes to arrivals<rank>.json when it came to each all_reduce of its pair; without `mesh`, when it had its
last gradient; and to steps<rank>.json how long its steps took.
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
every = int(sys.argv[4]) if len(sys.argv) > 4 else 1
step, took = 0, []
on_mesh = "mesh" in causes
LATE = {"module": 1 if on_mesh else 2, "backward": 2, "loader": 2 if on_mesh else 1, "batch": 3, "host": 2,
        "optimizer": 1}
arrivals: list[int] = []
WIDTH, BATCH = 16, 2


def is_late(cause: str, step: int) -> bool:
    return cause in causes and rank == LATE[cause] and step % every == every - 1


def nap(cause: str) -> None:
    if is_late(cause, step):
        time.sleep(seconds)


class Slow(torch.autograd.Function):
    """Sleeps when its gradient is computed."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        nap("backward")
        return gradient


class Mlp(nn.Module):
    def __init__(self, *, may_sleep: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.may_sleep = may_sleep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.may_sleep:
            nap("module")
        x = self.down(torch.relu(self.up(x)))
        return Slow.apply(x) if self.may_sleep and "backward" in causes else x


class Layer(nn.Module):
    def __init__(self, group: dist.ProcessGroup | None, *, may_sleep: bool) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Mlp(may_sleep=may_sleep)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mlp(self.norm(x))
        if self.group is not None:  # as tensor parallelism adds partial results
            arrivals.append(time.time_ns())
            dist.all_reduce(y.detach(), group=self.group)
        return x + y


class Model(nn.Module):
    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(group, may_sleep=index == 1) for index in range(3)))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


class Data(Dataset):
    """Items are numbered by step and by place in the batch."""

    def __getitem__(self, index: tuple[int, int]) -> torch.Tensor:
        if index[1] == 0:
            nap("loader")
        return torch.ones(16, WIDTH)


dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")) if on_mesh else None
torch.manual_seed(0)
model = DistributedDataParallel(
    Model(mesh.get_group("tp") if mesh is not None else None),
    process_group=mesh.get_group("dp") if mesh is not None else None, bucket_cap_mb=0.02)
if not on_mesh:
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _: arrivals.append(time.time_ns()))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
optimizer.register_step_pre_hook(lambda *_: nap("optimizer"))
size = BATCH * 512 if "batch" in causes else BATCH
sizes = [2 * size if is_late("batch", number) else size for number in range(num_steps)]
loader = DataLoader(Data(), batch_sampler=[[(number, place) for place in range(size)] for number, size in
                                           enumerate(sizes)])
began = time.perf_counter_ns()
for batch in loader:
    loss = model(batch).square().mean()
    nap("host")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    ended = time.perf_counter_ns()
    took.append(ended - began)
    began, step = ended, step + 1
if "ARRIVALS" in os.environ:
    for name, numbers in (("arrivals", arrivals), ("steps", took)):
        Path(os.environ["ARRIVALS"], f"{name}{rank}.json").write_text(json.dumps(numbers))
dist.destroy_process_group()
