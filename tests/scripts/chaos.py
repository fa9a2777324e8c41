"""DDP that says how far it got: `chaos.py MARKS STEPS [PLAN OUT]`; with PLAN it records itself into OUT.

Appends to MARKS/RANK.ATTEMPT its process id and then a line per finished step; writes what it trained to
MARKS/RANK.ATTEMPT.trained. CHAOS_HANDLER=after: it handles SIGTERM and goes on.
"""

import hashlib
import os
import signal
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if os.environ.get("CHAOS_HANDLER") == "after":
    signal.signal(signal.SIGTERM, lambda *_: None)
marks, num_steps, *by_hand = sys.argv[1:]
mark = Path(marks) / f"{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"


def note(line):
    with mark.open("a") as lines:
        lines.write(f"{line}\n")


note(os.getpid())
record = nullcontext()
if by_hand:
    import distprof

    record = distprof.record(by_hand[1], steps=by_hand[0])
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
with record:
    for step in range(int(num_steps)):
        model(torch.randn(4, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        note(step)
        time.sleep(0.02)
trained = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
mark.with_name(f"{mark.name}.trained").write_text(hashlib.sha256(trained).hexdigest())
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)  # torch 2.13 may abort at exit while gloo frees its last work
