"""What a rank has open before recording, in the midst of it, and after its last pass: `left_behind.py OUT`.

Writes OUT.RANK.json.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import distprof
from distprof import threads


def open_now():
    files = [os.fspath(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return {"threads": sorted(thread.name for thread in threading.enumerate()), "ours": len(threads.running()),
            "sockets": sorted(name for name in files if name.startswith("socket:"))}


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = {"before": open_now()}
with distprof.record(sys.argv[1], steps="wait=1,count=1,time=1,trace=0,arrivals=0") as rec:
    for step in range(4):
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()
        if step == 1:
            seen["recording"] = open_now()
    assert not rec.recording
    for _ in range(1000):  # a thread that was asked to end needs a processor to do so
        seen["after"] = open_now()
        if seen["after"] == seen["before"]:
            break
        time.sleep(0.01)
Path(f"{sys.argv[1]}.{dist.get_rank()}.json").write_text(json.dumps(seen))
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)  # torch 2.13 may abort at exit while gloo frees its last work
