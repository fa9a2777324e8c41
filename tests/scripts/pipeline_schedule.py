"""A pipeline of four stages under torch's 1F1B schedule: eight microbatches of two rows, ten features wide."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, ROWS, MICROBATCHES = 10, 2, 8
dist.init_process_group("gloo")
rank, num_stages = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
module = nn.Linear(WIDTH, WIDTH)
stage = PipelineStage(module, rank, num_stages, torch.device("cpu"))
schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=lambda out, target: (out - target).square().mean())
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
for _ in range(4):
    if rank == 0:
        schedule.step(torch.randn(ROWS * MICROBATCHES, WIDTH))
    elif rank == num_stages - 1:
        schedule.step(target=torch.randn(ROWS * MICROBATCHES, WIDTH), losses=[])
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
