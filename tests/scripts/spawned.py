"""Starts its own ranks and records them before they know who they are: `spawned.py OUT`."""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import distprof


def main(rank, out, port):
    with distprof.record(out, steps="wait=1,count=1,time=1,trace=1"):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=2)
        model = DistributedDataParallel(nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        dist.barrier()
        dist.destroy_process_group()
        time.sleep(0.3)  # torch 2.13 may abort at exit while gloo frees its last work


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    mp.spawn(main, (sys.argv[1], number), nprocs=2)
