"""DDP that records itself: `torchrun recorded_by_hand.py OUT`."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import distprof

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with distprof.record(sys.argv[1], steps="wait=1,count=1,time=1,trace=1") as rec:
    for _ in range(4):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        rec.step()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)  # torch 2.13 may abort at exit while gloo frees its last work
