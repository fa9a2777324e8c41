"""Jobs of several kinds in which one rank is late: `late_ranks.py KIND [MILLISECONDS] [STEPS] [EVERY]`.

Kinds: tp (parallelize_module; a block sleeps on rank 1), fsdp (FSDP2; backward on rank 2), tp_fsdp (both; forward
on rank 1), lbfgs (an optimizer that calls a closure; forward on rank 2), broadcast and reduce (the root, rank 0, sleeps
before it), sequences (rank 3 has longer ones), burn (rank 2 computes in the host), workers (a loader with a worker on
rank 1), pinned (rank 1 shares its core with a busy process), checkpoint (rank 0 sleeps behind the optimizer), none. The
delay is in each so-manieth step. Each rank writes how long its steps took to the folder WATCH.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

kind, *numbers = [*sys.argv[1:], *("none", "20", "45", "1")[len(sys.argv) - 1:]]
milliseconds, num_steps, every = (int(number) for number in numbers)
LATE = {"tp": 1, "fsdp": 2, "tp_fsdp": 1, "lbfgs": 2, "broadcast": 0, "reduce": 0, "sequences": 3, "burn": 2,
        "workers": 1, "pinned": 1, "checkpoint": 0, "none": -1}
WIDTH, DEPTH = 64, 3
step = 0


def is_late(name: str) -> bool:
    return kind == name and rank == LATE[name] and step % every == every - 1


def nap() -> None:
    time.sleep(milliseconds / 1000)


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        if is_late("fsdp"):
            nap()
        return gradient


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.norm = number, nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.number == 1 and any(is_late(name) for name in ("tp", "tp_fsdp", "lbfgs")):
            nap()
        y = self.down(torch.relu(self.up(self.norm(x))))
        return x + (SlowBackward.apply(y) if self.number == 1 else y)


class Samples(Dataset):
    def __len__(self) -> int:
        return 4 * num_steps

    def __getitem__(self, index: int) -> torch.Tensor:
        if kind == "workers" and rank == LATE[kind] and index % 4 == 0 and index // 4 % every == every - 1:
            nap()
        return torch.ones(256 if kind == "sequences" and rank == LATE[kind] else 128, WIDTH)


def on_mesh(model: nn.Module) -> nn.Module:
    if kind in ("tp", "tp_fsdp"):
        mesh = init_device_mesh("cpu", (2, 2) if kind == "tp_fsdp" else (4,), mesh_dim_names=("dp", "tp")[
            -1 if kind == "tp" else 0:])
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if kind == "tp":
            return model
        return _sharded(model, mesh["dp"])
    return _sharded(model, init_device_mesh("cpu", (4,))) if kind == "fsdp" else DistributedDataParallel(
        model, bucket_cap_mb=0.1)


def _sharded(model: nn.Module, mesh) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(number) for number in range(DEPTH)))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = on_mesh(Model())
burner = None
if kind == "pinned":
    os.sched_setaffinity(0, {rank % 2} if rank == LATE[kind] else set(range(os.cpu_count() or 1)))
    if rank == LATE[kind]:
        burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(burner.pid, {rank % 2})
optimizer = (torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=2) if kind == "lbfgs"
             else torch.optim.SGD(model.parameters(), lr=1e-4))
loader = DataLoader(Samples(), batch_size=4, num_workers=1 if kind == "workers" else 0)
buffer, took = torch.ones(1000), []


def closure(batch: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    return loss


for step, batch in enumerate(loader):  # noqa: B007 (is_late looks at it)
    began = time.perf_counter_ns()
    for name in ("broadcast", "reduce"):
        if is_late(name):
            nap()
    if kind == "broadcast":
        dist.broadcast(buffer, src=0)
    if is_late("burn"):
        until = time.thread_time() + milliseconds / 1000
        while time.thread_time() < until:
            pass
    if kind == "lbfgs":
        optimizer.step(lambda batch=batch: closure(batch))
    else:
        closure(batch)
        if kind == "reduce":
            dist.reduce(buffer, dst=0)
        optimizer.step()
    if is_late("checkpoint"):
        nap()
    took.append(time.perf_counter_ns() - began)
if burner is not None:
    burner.kill()
    burner.wait()
if "WATCH" in os.environ:
    Path(os.environ["WATCH"], f"steps{rank}.json").write_text(json.dumps(took))
dist.destroy_process_group()
