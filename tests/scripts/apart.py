"""Ranks that never wait for each other: `apart.py OUT STEP` stops in front of STEP until OUT.RANK.go is there."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import distprof

out, stop = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with distprof.record(out, steps="wait=1,count=1,time=1,trace=1,arrivals=0"):
    for step in range(5):
        if step == stop:
            Path(f"{out}.{rank}.waits").touch()
            while not Path(f"{out}.{rank}.go").exists():
                time.sleep(0.01)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
sys.stdout.flush()
os._exit(0)  # without the others there is nothing to take leave of
