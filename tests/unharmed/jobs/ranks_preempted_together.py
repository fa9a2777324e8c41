"""Two ranks, one gets SIGTERM; they agree on it by an all_reduce and save together (https://github.com/NVIDIA-NeMo/Automodel/pull/3007)."""
# ranks: 2
# recorded: any
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from small import digest, net, sgd, step
from torch.nn.parallel import DistributedDataParallel

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(net())
optimizer = sgd(model)
for number in range(50):
    step(model, optimizer, 2 * number + rank)
    if number == 3 and rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    any_asked = torch.tensor(len(asked))
    dist.all_reduce(any_asked)
    if any_asked:
        break
Path(f"saved{rank}").write_text(digest(model.module))
sys.stdout.write(f"rank {rank} stopped after {number} {digest(model.module)}\n")
dist.barrier()
dist.destroy_process_group()
