"""A DDP job that needs nothing but a network."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(14):
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
