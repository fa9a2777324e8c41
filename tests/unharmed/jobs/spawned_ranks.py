"""Ranks by `torch.multiprocessing.spawn` that write what they end with (https://github.com/pytorch/pytorch/issues/17199)."""
# real
# recorded: any
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from small import digest, net, sgd, step
from torch.nn.parallel import DistributedDataParallel


def rank(number, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=number, world_size=2)
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    for one in range(8):
        step(model, optimizer, 10 * one + number)
    Path(f"rank{number}").write_text(digest(model.module))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    torch.set_num_threads(1)
    mp.spawn(rank, (port,), nprocs=2)
    print("joined")
