"""Names with quotation marks: of a process group, a module and a slice."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
group = dist.new_group(list(range(dist.get_world_size())), group_desc='data "parallel"')
net = nn.Sequential()
net.add_module('in "1"', nn.Linear(8, 8))
net.add_module("out", nn.Linear(8, 8))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    with torch.profiler.record_function('load "part 1", quickly'):
        batch = torch.randn(4, 8)
    model(batch).square().mean().backward()
    dist.all_reduce(torch.ones(4), group=group)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
