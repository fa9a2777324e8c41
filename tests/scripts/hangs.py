"""Rank 1 fails while rank 0 hangs where no Python signal handler can run."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.zeros(2, 4)).sum().backward()
    optimizer.step()
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() == 1:
    store.wait(["hangs"])
    time.sleep(1)
    sys.exit(5)
store.set("hangs", "")
torch.distributed.TCPStore("127.0.0.1", 0, is_master=True).wait(["never"], __import__("datetime").timedelta(minutes=5))
