"""A DDP job that knows nothing of us: `by_any_launcher.py HOW [PORT]`, HOW its ranks start.

group: as the launcher set the environment; tcp: rank and size from Slurm's or MPI's variables; spawn, spawn-one,
process, fork, popen: ranks that this script starts itself; alone: one process without a group; nothing: no training.
"""

import multiprocessing
import os
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

HOW, PORT, *_ = [*(word for word in sys.argv[1:] if not word.startswith("--local_rank")), "0"]  # deepspeed adds it


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        sample = torch.ones(4)
        in_worker = torch.utils.data.get_worker_info() is not None
        return nn.Linear(4, 4)(sample).detach() if in_worker else sample  # a model that is not the one of the job


def train(rank, world_size, how):
    if rank is not None:  # else ranks that are started inside a job of torchrun look for the store of that job
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    if how == "tcp" or (rank is not None and world_size > 1):
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=rank, world_size=world_size)
    elif world_size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT} if PORT != "0" else {}
        dist.init_process_group("gloo")
    model = nn.Linear(4, 4)
    if world_size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Data(), batch_size=4, num_workers=1 if how in ("alone", "spawn") else 0)
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def as_task():
    for rank, size in (("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                       ("PMI_RANK", "PMI_SIZE")):
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    raise KeyError("no task")


def main():
    if HOW in ("spawn", "spawn-one"):
        number = 1 if HOW == "spawn-one" else 2
        mp.spawn(train, (number, "spawn"), nprocs=number)
    elif HOW in ("process", "fork"):
        context = multiprocessing.get_context("spawn" if HOW == "process" else "fork")
        ranks = [context.Process(target=train, args=(rank, 2, HOW)) for rank in range(2)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        sys.exit(max(one.exitcode for one in ranks))
    elif HOW == "popen":
        ranks = [subprocess.Popen([sys.executable, __file__, "group", PORT],
                                  env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)]
        sys.exit(max(one.wait() for one in ranks))
    elif HOW == "tcp":
        train(*as_task(), "tcp")
    elif HOW == "group":
        train(None, 2, "group")
    elif HOW == "alone":
        train(0, 1, "alone")


if __name__ == "__main__":
    main()
