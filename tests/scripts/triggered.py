"""A DDP job in which one rank may become slow in one block: `triggered.py STEPS SECONDS SLOW_FROM`.

Each rank writes what it has of memory, threads, files and hooks, and when its steps ended, to the folder NOTED, now and
then.
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
from torch.nn.modules import module as nn_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optim

num_steps, seconds, slow_from = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
now = 0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class SlowBlock(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if rank == 1 and now >= slow_from:
            time.sleep(5 * seconds)  # slow
        return super().forward(x)


def held() -> dict:
    return {
        "rss_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()), "python_threads": threading.active_count(),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "hooks": len(optim._global_optimizer_pre_hooks) + len(optim._global_optimizer_post_hooks)
        + len(nn_module._global_forward_pre_hooks) + len(nn_module._global_forward_hooks)}


model = DistributedDataParallel(nn.Sequential(Block(), SlowBlock(), Block(), nn.Linear(32, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
noted = Path(os.environ["NOTED"])
ends_ns, samples = [], []
for now in range(num_steps):
    model(torch.ones(8, 32)).square().mean().backward()
    time.sleep(seconds)
    optimizer.step()
    optimizer.zero_grad()
    ends_ns.append(time.time_ns())
    if now % 50 == 49:
        samples.append({"step": now, **held()})
        stop = torch.tensor(float((noted / "stop").exists()))
        dist.all_reduce(stop)
        if stop:
            break
(noted / f"{rank}.json").write_text(json.dumps({"ends_ns": ends_ns, "held": samples}))
dist.destroy_process_group()
