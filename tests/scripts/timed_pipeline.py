"""A pipeline of stages that take a known time: `timed_pipeline.py SCHEDULE CHUNKS`, forward 8 ms, backward 16 ms.

They sleep: the schedule alone decides how long a stage waits, however many processors there are.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}
WIDTH, ROWS, MICROBATCHES, FORWARD_S = 4, 2, 8, 0.008


class Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * FORWARD_S)
        return gradient


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return Nap.apply(self.layer(x))


name, chunks = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
modules = [Stage() for _ in range(chunks)]
stages = [PipelineStage(module, chunk * world_size + rank, chunks * world_size, torch.device("cpu"))
          for chunk, module in enumerate(modules)]
schedule = SCHEDULES[name](stages if name == "interleaved" else stages[0], MICROBATCHES,
                           loss_fn=lambda out, target: (out - target).square().mean())
optimizer = torch.optim.SGD([p for module in modules for p in module.parameters()], lr=0.1)
for _ in range(8):
    batch = [torch.randn(ROWS * MICROBATCHES, WIDTH)] if rank == 0 else []
    last = {"target": torch.randn(ROWS * MICROBATCHES, WIDTH), "losses": []} if rank == world_size - 1 else {}
    schedule.step(*batch, **last)
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
