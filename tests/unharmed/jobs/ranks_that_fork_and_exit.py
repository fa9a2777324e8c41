"""Two ranks that fork evaluators, and leave by `sys.exit` in a finally (https://github.com/huggingface/accelerate/issues/3059)."""
# ranks: 2
# ends: 0
import os
import sys

import torch
import torch.distributed as dist
from small import digest, net, sgd, step
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(net())
optimizer = sgd(model)
try:
    for number in range(8):
        step(model, optimizer, 2 * number + rank)
        if number in (2, 6):
            child = os.fork()
            if not child:
                os._exit(int(float(sum(one.sum() for one in model.module.parameters())) * 100) % 100)
            sys.stdout.write(f"rank {rank} {number} {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
    sys.stdout.write(f"rank {rank} {digest(model.module)}\n")
    dist.barrier()
    dist.destroy_process_group()
finally:
    sys.stdout.flush()
    sys.exit(0)
