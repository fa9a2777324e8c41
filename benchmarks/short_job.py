"""What recording adds to a job of a few steps: start, passes, files and end, beside the same job under plain torchrun.

    python benchmarks/overhead.py --job [--ranks 2] [--rounds 5]

Processor time is that of all processes of the job, launcher included, divided by ranks. Both run in turns.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    model(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """One job."""

    processor_s: float
    """Per rank."""
    elapsed_s: float


def run(command: list[str], ranks: int) -> Took:
    """Runs a job that must succeed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    after, elapsed = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(processor_s=used / ranks, elapsed_s=elapsed)


def short_job(ranks: int, rounds: int) -> None:
    """Prints what recording adds."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "short.py"
        script.write_text(SCRIPT)
        flags = ["--nproc-per-node", str(ranks), str(script)]
        commands = {
            "plain": [sys.executable, "-m", "torch.distributed.run", "--standalone", *flags],
            "recorded": [sys.executable, "-m", "distprof", "run", "--no-merge", "--force", "--out",
                         f"{folder}/run", *flags]}
        took: dict[str, list[Took]] = {name: [] for name in commands}
        for _ in range(rounds + 1):  # the first fills caches
            for name, command in commands.items():
                took[name].append(run(command, ranks))
    print(f"{ranks} ranks, 50 steps, {rounds} rounds in turns; median (least .. most)")
    for what in ("processor_s", "elapsed_s"):
        values = {name: [getattr(one, what) for one in found[1:]] for name, found in took.items()}
        added = [more - less for more, less in zip(values["recorded"], values["plain"], strict=True)]
        unit = "s of processor time a rank" if what == "processor_s" else "s elapsed"
        for name, found in (*values.items(), ("added", added)):
            print(f"{name:10} {statistics.median(found):6.2f} ({min(found):.2f} .. {max(found):.2f}) {unit}")
