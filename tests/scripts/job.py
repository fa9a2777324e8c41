"""A small DDP job with something special about it: `job.py HOW [STEPS]`."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

how = sys.argv[1]
num_steps = int(sys.argv[2]) if len(sys.argv) > 2 else 13
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(num_steps):
    loss = model(torch.randn(3, 8)).square().mean()
    loss.backward()
    if how != "never-steps":
        optimizer.step()
        optimizer.zero_grad()
    if step == 2 and rank == 1:
        if how == "raises":
            raise ValueError("the data is bad")
        if how == "exits-3":
            sys.exit(3)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
sys.stdout.write(f"rank {rank} to stdout\n")  # print() writes the end of the line apart: ranks would mix
sys.stderr.write(f"rank {rank} to stderr\n")
dist.destroy_process_group()
