"""Communication of a step that is waited for in the next one: `crossing.py collective|single`."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
waiting = []
for _ in range(9):
    if sys.argv[1] == "collective":
        time.sleep(0.05 * rank)
        begun = [dist.all_reduce(torch.ones(1000), async_op=True)]
    else:
        begun = [dist.irecv(torch.empty(10), 1 - rank), dist.isend(torch.ones(10), 1 - rank)]
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    for work in waiting:
        work.wait()
    waiting = begun
for work in waiting:
    work.wait()
dist.barrier()
dist.destroy_process_group()
