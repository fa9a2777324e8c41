"""Two or more ranks get stuck in front of step STEP: `stuck.py HOW STEP MARK`.

absent: rank 1 sleeps and never enters the all_reduce of the others. sizes: rank 1 brings another size. ops: rank 1
enters a barrier instead. timeout: rank 1 sleeps and the others give up after two seconds. pause: rank 1 sleeps for four
seconds, then all go on. Both write MARK.RANK first.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

how, stop, mark = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group(list(range(dist.get_world_size())), group_desc="checks",
                       timeout=timedelta(seconds=2 if how == "timeout" else 600))
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def oversleep(seconds):
    time.sleep(seconds)


for step in range(stop + 2):
    if step == stop:
        Path(f"{mark}.{rank}").touch()
        if rank == 1 and how == "ops":
            dist.barrier(group=group)
        elif rank == 1 and how != "sizes":
            oversleep({"absent": 300, "timeout": 4, "pause": 4}[how])
    dist.all_reduce(torch.zeros(5 if how == "sizes" and step == stop and rank == 1 else 3), group=group)
    model(torch.zeros(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
