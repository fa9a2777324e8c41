"""A DDP job whose ranks profile some steps by themselves: `profiles_itself.py RANKS FIRST LAST`, RANKS like 0,1."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ranks, first, last = {int(one) for one in sys.argv[1].split(",")}, int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
theirs = torch.profiler.profile() if dist.get_rank() in ranks else None
for step in range(14):
    if theirs is not None and step == first:
        theirs.start()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if theirs is not None and step == last:
        theirs.stop()
dist.destroy_process_group()
