"""Data-parallel ranks that wait for a metric long before they look at it: `early_waits.py STEPS MS [late]`.

In each step rank 1 sleeps MS ms, all ranks reduce a metric and wait for it, rank 0 sleeps MS ms, and the metric is
read. With `late`, ranks wait for it only then, so that they sleep at the same time.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

num_steps, nap_s, is_late = int(sys.argv[1]), float(sys.argv[2]) / 1000, sys.argv[3:] == ["late"]
dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(32, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(num_steps):
    loss = model(torch.ones(4, 32)).square().mean()
    metric = loss.detach().clone()
    time.sleep(nap_s if rank == 1 else 0)
    work = dist.all_reduce(metric, async_op=True)
    if not is_late:
        work.wait()
    time.sleep(nap_s if rank == 0 else 0)
    if is_late:
        work.wait()
    metric.item()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
