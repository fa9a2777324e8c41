"""A rank that spends time in one line of its script: slow_lines.py WHAT.  Each `# slow` marks the line of one."""

import json
import logging
import os
import pickle
import re
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

WHAT = sys.argv[1]
MS = 0.03
dist.init_process_group("gloo")
IS_LATE = dist.get_rank() == 1
torch.set_num_threads(1)
lock = threading.Lock()
log = logging.getLogger("slow")
TEXT = "a" * 21 + "b"
state = {str(number): list(range(400)) for number in range(400)}


def hold() -> None:
    """Another thread has the lock for a while, again and again."""
    while True:
        with lock:
            time.sleep(MS)
        time.sleep(0.001)


def busy() -> int:
    end, turns = time.perf_counter() + MS, 0
    while time.perf_counter() < end:
        turns += 1  # slow: loop
    return turns


def tokenize(text: str) -> list:
    return [re.match("(a+)+$", text) for _ in range(1)]  # slow: regex


class Data(Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        if IS_LATE and WHAT == "dataset":
            time.sleep(MS / 8)  # slow: dataset
        return torch.full((64,), index / 1000)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        if IS_LATE and WHAT == "forward":
            time.sleep(MS)  # slow: forward
        return self.second(x)


class Slow(torch.optim.SGD):
    def step(self, closure=None):
        if IS_LATE and WHAT == "optimizer":
            time.sleep(MS)  # slow: optimizer
        return super().step(closure)


def slow(loss: torch.Tensor) -> None:
    if WHAT == "loop":
        busy()
    elif WHAT == "regex":
        tokenize(TEXT)
    elif WHAT == "checkpoint":
        for _ in range(12):
            pickle.dumps(state, protocol=0)  # slow: checkpoint
    elif WHAT == "logging":
        for value in loss.detach().repeat(6000):
            log.debug("loss %s", value.item())  # slow: logging
    elif WHAT == "json":
        json.loads(json.dumps(state, indent=1))  # slow: json
    elif WHAT == "disk":
        with tempfile.TemporaryFile() as file:
            for _ in range(40):
                os.pwrite(file.fileno(), bytes(1 << 20), 0)  # slow: disk
    elif WHAT == "lock":
        with lock:  # slow: lock
            pass


if IS_LATE and WHAT == "lock":
    threading.Thread(target=hold, daemon=True).start()
model = torch.nn.parallel.DistributedDataParallel(Net())
optimizer = Slow(model.parameters(), lr=0.01)
for x in DataLoader(Data(), batch_size=8):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    if IS_LATE:
        slow(loss)
    loss.backward()
    optimizer.step()
    if x[0, 0] > 0.36:
        break
dist.destroy_process_group()
