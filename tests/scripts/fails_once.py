"""A DDP job in which rank 1 fails in step 4 of the first attempt: `fails_once.py [always]`."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fails = "always" in sys.argv or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
for step in range(8):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if fails and step == 4 and rank == 1:
        raise ValueError("bad sample 17")
dist.destroy_process_group()
