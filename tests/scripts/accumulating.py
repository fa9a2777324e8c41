"""DDP that accumulates gradients, with all_reduces in groups of two while it computes; and messages with isend."""

import sys

import torch
import torch.distributed as dist
from torch import nn


def accumulate(rank: int) -> None:
    """DDP with two microbatches a step, a norm of all gradients, and a group of two."""
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]), bucket_cap_mb=1)
    groups = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        with model.no_sync():
            model(torch.randn(32, 256)).square().mean().backward()
        with torch.profiler.record_function("last microbatch"):
            model(torch.randn(32, 256)).square().mean().backward()
        total = torch.ones(1000)
        work = dist.all_reduce(total, group=groups[rank // 2], async_op=True)
        torch.randn(200, 200) @ torch.randn(200, 200)
        work.wait()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.broadcast(total, 0)


def send(rank: int) -> None:
    """Two stages that send ahead, and wait at the end of the step."""
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        results, works = [], []
        for number in range(3):
            if rank == 0:
                results.append(model(torch.randn(32, 256)))
                works.append(dist.isend(results[-1].detach(), 1, tag=number))
            else:
                received = torch.empty(32, 256)
                dist.recv(received, 0, tag=number)
                received.requires_grad_()
                model(received).square().mean().backward()
                works.append(dist.isend(received.grad, 0, tag=100 + number))
        for number, result in enumerate(results):
            gradient = torch.empty(32, 256)
            dist.recv(gradient, 1, tag=100 + number)
            result.backward(gradient)
        for work in works:
            work.wait()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    {"accumulate": accumulate, "send": send}[sys.argv[1]](dist.get_rank())
    dist.destroy_process_group()
