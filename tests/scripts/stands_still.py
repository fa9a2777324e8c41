"""Ranks come to stand in step STEP, or only take long: `stands_still.py HOW STEP MARK WHO`. Each notes its steps."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

LONG_S = 24
how, stop, mark, who = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])


class Samples(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, number):
        if number == stop + 1 and how == "loader" and dist.get_rank() == who:
            time.sleep(10_000)
        if number == stop + 1 and how == "slow loader" and dist.get_rank() == who:
            compute()
        return torch.zeros(4)


def compute():
    """A third of the time, or on a busy machine more: others need processors too."""
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        begin = time.thread_time()
        while time.thread_time() < begin + 0.02:
            torch.rand(64, 64) @ torch.rand(64, 64)
        time.sleep(0.04)


def write_checkpoint():
    until = time.monotonic() + LONG_S
    with open(f"{mark}.checkpoint", "wb") as file:  # noqa: PTH123
        while time.monotonic() < until:
            file.seek(0)
            file.write(os.urandom(1 << 22))
            file.flush()
            os.fsync(file.fileno())


def take_lock():
    lock = threading.Lock()
    threading.Thread(target=lambda: (lock.acquire(), time.sleep(10_000)), daemon=True).start()
    time.sleep(0.2)
    with lock:
        print("never")


def open_fifo():
    path = f"{mark}.fifo.{rank}"
    os.mkfifo(path)
    with open(path, "rb") as file:  # noqa: PTH123 (waits for a writer that never comes)
        file.read()


def wait_for_store():
    dist.distributed_c10d._get_default_store().get("a key that nobody sets")


def trouble():
    one = rank == who
    if how == "dead" and one:
        os._exit(0)
    elif how == "dead":
        wait_for_store()
    elif how == "stopped" and one:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "branch":
        dist.all_reduce(torch.zeros(3), group=second if one else first)
    elif how == "op":
        dist.broadcast(torch.zeros(3), 0) if one else dist.barrier()
        dist.all_reduce(torch.zeros(3), group=first)
    elif how == "lock" and one:
        take_lock()
    elif how == "no folder" and one:
        shutil.rmtree(next(Path(os.environ["DISTPROF_OUT"]).glob(f"rank{rank:05d}*")))
        take_lock()
    elif how == "native" and one:
        ctypes.PyDLL(None).sleep(10_000)  # holds the interpreter: no thread of this rank can tell anything
    elif how == "store" and one:
        wait_for_store()
    elif (how == "fifo" and one) or how == "all fifo":
        open_fifo()
    elif (how == "slow rank" and one) or how == "evaluation":
        compute()
    elif how == "checkpoint" and rank == 0:
        write_checkpoint()
    elif how == "compiler" and one:
        subprocess.run(["timeout", str(LONG_S), sys.executable, "-c", "while True: pass"])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    first, second = dist.new_group(group_desc="first"), dist.new_group(group_desc="second")
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = {"num_workers": 1, "prefetch_factor": 1} if "loader" in how else {}
    for step, samples in enumerate(DataLoader(Samples(), batch_size=1, **worker)):
        if step == stop:
            trouble()
        model(samples).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
        Path(f"{mark}.{rank}.step").write_text(f"{step + 1} {time.time_ns()}")
        if step > stop + 20:
            break
    dist.destroy_process_group()
