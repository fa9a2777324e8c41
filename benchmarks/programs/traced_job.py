"""Traces 4 data-parallel ranks with torch.profiler: `python traced_job.py FOLDER MEGABYTES` (size per rank)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from forked_ranks import fork
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from train_ddp import Transformer

RANKS = 4
BATCH, LENGTH, WIDTH = 2, 16, 64
"""Small, so that the profiler dominates the cost of a step and the trace grows fast."""


class Job:
    """Steps of AdamW on random tokens, data parallel."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(Transformer(width=WIDTH, length=LENGTH))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def trace(self, num_steps: int, output: Path) -> int:
        """Traces `num_steps` steps after a warm-up step; returns the size of the file in bytes."""
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True,
                     schedule=schedule(wait=0, warmup=1, active=num_steps, repeat=1),
                     on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(output))) as profiler:
            for _ in range(1 + num_steps):
                self._step()
                profiler.step()
        return output.stat().st_size

    def _step(self) -> None:
        tokens = torch.randint(1000, (BATCH, LENGTH + 1))
        logits = self.model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def steps_for(job: Job, size_bytes: int, trial: Path) -> int:
    """Returns the number of steps, equal on all ranks, for a trace of about `size_bytes`, from two short traces."""
    few, more = job.trace(1, trial), job.trace(3, trial)
    trial.unlink()
    found: list[Any] = [max(round(1 + 2 * (size_bytes - few) / (more - few)), 1)]
    dist.broadcast_object_list(found)
    return int(found[0])


def trace(folder: str, megabytes: float) -> None:
    """Writes rank{N}_trace.json for this rank."""
    job, rank, out = Job(), dist.get_rank(), Path(folder)
    num_steps = steps_for(job, int(megabytes * 1e6), out / f"trial{rank}.json")
    job.trace(num_steps, out / f"rank{rank}_trace.json")
    if rank == 0:
        print(f"{num_steps} steps traced")


if __name__ == "__main__":
    fork(RANKS, trace, sys.argv[1], float(sys.argv[2]))
