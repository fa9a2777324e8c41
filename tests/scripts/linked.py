"""A job whose ranks move data: `linked.py KIND STEPS ELEMENTS SECONDS`, one rank a host.

KIND: all_to_all, ring (one large all_reduce) or pairs (an all_reduce of each two ranks).
"""

import sys
import time
from itertools import combinations

import torch
import torch.distributed as dist
from torch import nn

kind, num_steps, elements, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
every = {both: dist.new_group(list(both)) for both in combinations(range(size), 2)} if kind == "pairs" else {}
groups = [group for both, group in every.items() if rank in both]
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
content = torch.ones(size * elements)
for _ in range(num_steps):
    time.sleep(seconds)
    loss = model(torch.ones(4, 16)).sum()
    loss.backward()
    if kind == "all_to_all":
        dist.all_to_all_single(torch.empty_like(content), content)
    elif kind == "ring":
        dist.all_reduce(content)
    for group in groups:
        dist.all_reduce(content[:elements], group=group)
    for weight in model.parameters():
        dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
