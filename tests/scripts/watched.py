"""A DDP job that goes on behind its passes: `watched.py STEPS SECONDS LATE_RANK`: so long before each backward pass."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

num_steps, seconds, late_rank = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
ends = os.environ.get("ENDS_BY")
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4)), bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(num_steps):
    loss = model(torch.ones(3, 64)).square().mean()
    time.sleep(seconds * (1.5 if rank == late_rank else 1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total = torch.ones(1)
    dist.all_reduce(total)
    if ends and step == num_steps - 2:
        os.kill(os.getpid(), getattr(signal, ends))
sys.stdout.write(f"rank {rank}: {float(sum(weight.sum() for weight in model.parameters())):.9f}\n")
dist.destroy_process_group()
