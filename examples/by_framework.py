"""One transformer made parallel by what torch has for it:

    torchrun --nproc-per-node 4 examples/by_framework.py hsdp

The kinds are ddp, fsdp1, fsdp2, hsdp (2 replicas), tp and sp (DTensor), fsdp2-tp (tp 2), 1f1b and interleaved
(torch.distributed.pipelining); `recompute` behind the kind repeats the forward calls of blocks in backward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, LENGTH, DEPTH, BATCH, MICROBATCHES = 16, 4, 8, 4, 8, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        query, key, value = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
                             for layer in (self.query, self.key, self.value))
        weights = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
        return self.out((weights @ value).transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.mlp_norm, self.mlp = nn.LayerNorm(WIDTH), MLP()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Net(nn.Module):
    """Some of the blocks, named as in the whole model."""

    def __init__(self, blocks: Iterable[int] = range(DEPTH), *, recompute: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(index): Block() for index in blocks})
        self.recompute = recompute

    def forward(self, x):
        for block in self.blocks.values():
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x


def split_layers(model: Net, mesh: Any, *, sequence: bool) -> nn.Module:
    """Divides attention heads and MLPs by DTensor; with `sequence`, norms work on a part of the sequence each."""
    first = ("attention.query", "attention.key", "attention.value", "mlp.up")
    last = ("attention.out", "mlp.down")
    if not sequence:
        plan: dict[str, Any] = {**dict.fromkeys(first, ColwiseParallel()), **dict.fromkeys(last, RowwiseParallel())}
    else:
        plan = {**dict.fromkeys(("attention_norm", "mlp_norm"), SequenceParallel()),
                **dict.fromkeys(first, ColwiseParallel(input_layouts=Shard(1))),
                **dict.fromkeys(last, RowwiseParallel(output_layouts=Shard(1), use_local_output=False))}
    for block in model.blocks.values():
        parallelize_module(block, mesh, plan)
    if sequence:
        parallelize_module(model, mesh, PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=False))
    return model


def shard(model: Net, mesh: Any) -> nn.Module:
    """FSDP2: every block, and what is left."""
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def made_parallel(kind: str, model: Net) -> nn.Module:
    """The model as one rank has it."""
    world = dist.get_world_size()
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp1":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    if kind == "fsdp2":
        return shard(model, init_device_mesh("cpu", (world,), mesh_dim_names=("dp",)))
    if kind == "hsdp":
        return shard(model, init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp_replicate", "dp_shard")))
    if kind == "fsdp2-tp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        split_layers(model, mesh["tp"], sequence=False)
        return shard(model, mesh["dp"])
    return split_layers(model, init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)), sequence=kind == "sp")


def loss_of(out: torch.Tensor, _: object = None) -> torch.Tensor:
    return (out.full_tensor() if isinstance(out, DTensor) else out).square().mean()


def pipeline(kind: str, *, recompute: bool) -> tuple[list[nn.Module], Callable[[torch.Tensor], None]]:
    """The stages of this rank, and a function that sends a batch through all."""
    rank, world = dist.get_rank(), dist.get_world_size()
    per_rank = 2 if kind == "interleaved" else 1
    depth = DEPTH // (per_rank * world)
    places = [rank + world * turn for turn in range(per_rank)]
    modules = [Net(range(place * depth, (place + 1) * depth), recompute=recompute) for place in places]
    stages = [PipelineStage(module, place, per_rank * world, torch.device("cpu"))
              for place, module in zip(places, modules, strict=True)]
    schedule: Any = (ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=loss_of) if kind == "interleaved" else
                     Schedule1F1B(stages[0], MICROBATCHES, loss_fn=loss_of))

    def step(batch: torch.Tensor) -> None:
        first, last = ((batch,) if rank == 0 else ()), ({"target": batch} if rank == world - 1 else {})
        schedule.step(*first, **last)

    return [*modules], step


def main(arguments: list[str], steps: int = 8) -> None:
    kind, recompute = arguments[0], "recompute" in arguments
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    if kind in ("1f1b", "interleaved"):
        modules, step = pipeline(kind, recompute=recompute)
    else:
        model = made_parallel(kind, Net(recompute=recompute))
        modules, step = [model], lambda batch: loss_of(model(batch)).backward()
    optimizer = torch.optim.SGD([one for module in modules for one in module.parameters()], lr=0.1)
    for _ in range(steps):
        step(torch.randn(BATCH, LENGTH, WIDTH))
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
