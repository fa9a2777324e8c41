"""Profiles training in several ways, and keeps each trace beside the tables that torch.profiler prints of it.

Arguments: a folder, and which ways. Started by torchrun, each rank has its own files.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

WAYS = {"plain": {}, "shapes": {"record_shapes": True, "with_flops": True}, "stacks": {"with_stack": True},
        "stacks_unasked": {"with_stack": True}, "memory": {"profile_memory": True},
        "ddp": {"record_shapes": True, "with_stack": True, "profile_memory": True, "with_flops": True},
        "compiled": {"record_shapes": True, "with_stack": True, "profile_memory": True}}
TABLES = {"": {}, "shape": {"group_by_input_shape": True}, "stack": {"group_by_stack_n": 3},
          "shape_stack": {"group_by_input_shape": True, "group_by_stack_n": 8}}
SORTS = (None, "cpu_time_total", "self_cpu_time_total", "cpu_time", "count", "cpu_memory_usage",
         "self_cpu_memory_usage", "flops")


class Doubled(torch.autograd.Function):
    """Its backward is called by the engine."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Model(torch.nn.Module):
    """With a convolution, a part that is computed again in backward, and a function that is written in Python."""

    def __init__(self):
        super().__init__()
        self.image = torch.nn.Conv2d(2, 4, 3, padding=1, stride=(2, 1), groups=2)
        self.again = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
        self.layers = torch.nn.TransformerEncoderLayer(8, 2, dim_feedforward=32, batch_first=True)

    def forward(self, x):
        x = self.image(x).flatten(1, 2)
        x = checkpoint(self.again, x, use_reentrant=False) + 1
        return Doubled.apply(self.layers(x))


def elsewhere(x):
    """Forward and backward on another thread."""
    thread = threading.Thread(target=lambda: (x @ x).relu().sum().backward())
    thread.start()
    thread.join()


def main() -> None:
    out, ways = Path(sys.argv[1]), sys.argv[2:]
    rank = int(os.environ.get("RANK", 0))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    if "compiled" in ways:
        model = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step():
        loss = model(torch.randn(3, 2, 6, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not dist.is_initialized():
            elsewhere(torch.randn(4, 4, requires_grad=True))
        else:
            dist.all_reduce(torch.ones(4))

    for _ in range(3):  # code that is made and dropped while torch notes stacks leaves it with names that are gone
        step()
    for way in ways:
        more = torch._C._profiler._ExperimentalConfig(verbose=way != "stacks_unasked",
                                                      capture_overload_names=way == "shapes")
        plan = None if way == "memory" else schedule(wait=0, warmup=1, active=2, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], experimental_config=more, schedule=plan,
                     **WAYS[way]) as profiler:
            for _ in range(3):
                kept = torch.randn(100)
                step()
                del kept  # inside of nothing, where no step is marked
                profiler.step()
        folder = out / way / f"rank{rank}"
        folder.mkdir(parents=True)
        profiler.export_chrome_trace(str(folder / "trace.json"))
        for name, flags in TABLES.items():
            for sort in SORTS if not flags else SORTS[:1]:
                table = profiler.key_averages(**flags).table(sort_by=sort, row_limit=100_000)
                (folder / f"{name}-{sort}.txt").write_text(table)
    if dist.is_initialized():
        dist.destroy_process_group()


main()
