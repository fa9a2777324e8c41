"""DDP on clocks that may be wrong, and that knows better: `torchrun skewed.py OUT`.

CLOCK_OF_3="+3s x1.0001" makes that of local rank 3 wrong, by the library LIBFAKETIME. Writes OUT.RANK.json: the wrong
clock beside that of the kernel, and when the kernel says that a slice began.
"""

import os
import sys

if spec := os.environ.pop(f"CLOCK_OF_{os.environ['LOCAL_RANK']}", None):
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {
        "LD_PRELOAD": os.environ["LIBFAKETIME"], "FAKETIME": spec, "FAKETIME_DONT_FAKE_MONOTONIC": "1"})

import ctypes
import json
import platform
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import distprof

CLOCK_GETTIME = {"x86_64": 228, "aarch64": 113}[platform.machine()]
LIBC = ctypes.CDLL(None)


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def kernel_ns():
    """CLOCK_REALTIME without the C library's function for it, which may be a fake."""
    now = Timespec()
    assert LIBC.syscall(CLOCK_GETTIME, 0, ctypes.byref(now)) == 0
    return now.seconds * 10**9 + now.nanoseconds


def both_clocks():
    """(own, kernel, how far that may be wrong), ns."""
    rounds = []
    for _ in range(300):
        before, own, after = kernel_ns(), time.time_ns(), kernel_ns()
        rounds.append((after - before, own, (before + after) // 2))
    width, own, kernel = min(rounds)
    return own, kernel, width // 2 + 1


dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pairs, marks = [both_clocks()], []
with distprof.record(sys.argv[1], steps="wait=1,count=1,time=2,trace=12"):
    for _ in range(16):
        before = kernel_ns()
        with torch.profiler.record_function("mark"):
            marks.append((before, kernel_ns()))
        model(torch.randn(2, 64)).sum().backward()
        dist.all_reduce(torch.ones(8))
        optimizer.step()
        threading.Event().wait(0.05)  # libfaketime breaks the absolute sleep that time.sleep asks for
pairs.append(both_clocks())
Path(f"{sys.argv[1]}.{dist.get_rank()}.json").write_text(json.dumps({"pairs": pairs, "marks": marks[-12:]}))
dist.barrier()
dist.destroy_process_group()
threading.Event().wait(0.3)  # torch 2.13 may abort at exit while gloo frees its last work
