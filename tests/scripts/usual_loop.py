"""A training loop as most people write it, in which rank 1 is late in one place: usual_loop.py PLACE."""

import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader

PLACE = sys.argv[1]
SLEEP_S, PASSES, STEPS = 0.03, 4 if PLACE == "accumulated" else 1, 50
torch.set_num_threads(1)
dist.init_process_group("gloo")
IS_LATE = dist.get_rank() == 1


def nap(place: str) -> None:
    if IS_LATE and place == PLACE:
        time.sleep(SLEEP_S)


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.mlp = number, nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.number == 1:
            nap("module")
            nap("profiled")
        return x + self.mlp(x)


model = nn.parallel.DistributedDataParallel(nn.Sequential(*(Layer(number) for number in range(3)), nn.Linear(128, 1)))
optimizer = torch.optim.AdamW(model.parameters())
batches = iter(DataLoader(torch.randn(32 * PASSES * STEPS, 128), batch_size=32))


def step() -> None:
    for number in range(PASSES):
        x = next(batches)
        nap("before zero_grad")
        if not number:
            optimizer.zero_grad()
        with nullcontext() if number == PASSES - 1 else model.no_sync():
            loss = model(x).square().mean()
            nap("accumulated")
            loss.backward()
    optimizer.step()
    nap("behind")


if PLACE == "profiled":  # by torch.profiler alone
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    file = f"{sys.argv[2]}/rank{dist.get_rank()}_trace.json"
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=12),
                 on_trace_ready=lambda one: one.export_chrome_trace(file)) as profiler:
        for _ in range(15):
            step()
            profiler.step()
else:
    for _ in range(STEPS):
        step()
dist.destroy_process_group()
