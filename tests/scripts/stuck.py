"""Two or more ranks get stuck in front of step STEP: `stuck.py HOW STEP MARK`.

absent: rank 1 sleeps and never enters the all_reduce of the others. sizes: rank 1 brings another size. ops: rank 1
enters a barrier instead. timeout: rank 1 sleeps and the others give up after five seconds. pause: rank 1 sleeps until
there is a file MARK.go, then all go on. A rank writes MARK.RANK when it stands, or where it cannot stand before.
"""

import sys
import threading
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
                       timeout=timedelta(seconds=5 if how == "timeout" else 600))
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def oversleep(forever):
    while forever or not Path(f"{mark}.go").exists():
        time.sleep(0.05)


def mark_when_inside(*functions):
    """Writes the mark when the main thread has been in one of them for a while."""
    inside = 0
    while inside < 40:  # two seconds, or more on a busy machine: less is no hang to `comms`
        frame, names = sys._current_frames()[threading.main_thread().ident], set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        inside = inside + 1 if names & set(functions) else 0
        time.sleep(0.05)
    Path(f"{mark}.{rank}").touch()


for step in range(stop + 2):
    if step == stop:
        if how in ("sizes", "timeout"):
            Path(f"{mark}.{rank}").touch()
        else:
            threading.Thread(target=mark_when_inside, args=("oversleep", "all_reduce", "barrier"), daemon=True).start()
        if rank == 1 and how == "ops":
            dist.barrier(group=group)
        elif rank == 1 and how != "sizes":
            oversleep(how != "pause")
    dist.all_reduce(torch.zeros(5 if how == "sizes" and step == stop and rank == 1 else 3), group=group)
    model(torch.zeros(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
