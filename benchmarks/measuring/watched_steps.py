"""The cost of the watch: steps of a given duration with and without it in turns, in one process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import distprof
from distprof.recording.recorder import Recorder

BLOCK = 50
"""Number of steps per block; blocks with and without the watch alternate."""
NUM_CALLS = 10
"""Number of collectives per step."""
STATM_PAGE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Costs of the watch for one step duration."""

    step_ms: float
    num_steps: int
    """Number of steps with the watch, and as many without."""
    cpu_ms: float
    """Mean processor time of the watch per step."""
    low_ms: float
    high_ms: float
    """Quartiles (25 % and 75 %) over pairs of blocks."""
    bytes_per_hour: float
    rss_mb: float
    """Growth of the resident set size with the watch running, which includes what it has logged."""

    def row(self) -> list[str]:
        """Returns a row of a table with `HEAD`."""
        return [f"{self.step_ms:g} ms", str(self.num_steps),
                f"{self.cpu_ms:.3f} ms ({self.low_ms:.3f} .. {self.high_ms:.3f})",
                f"{self.cpu_ms / self.step_ms * 100:.2f} %", f"{self.bytes_per_hour / 1e6:.2f} MB",
                f"{self.rss_mb:.1f} MB"]


HEAD = ("step", "steps each", "processor time per step", "of a step", "bytes per hour", "memory")


def watched(step_ms: float, num_steps: int) -> Watched:
    """Measures the watch in steps of this duration that mostly sleep, with `NUM_CALLS` collectives each.

    The process group is a fake one, so that collectives do not wait.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _watched(Path(folder) / "run", step_ms, num_steps)
    finally:
        dist.destroy_process_group()


def sleepy_step(step_ms: float) -> tuple[torch.nn.Module, Callable[[], None]]:
    """Returns a model and a step function that mostly sleeps, with `NUM_CALLS` collectives."""
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data, reduced = torch.ones(8, 64), torch.ones(64)

    def step() -> None:
        until = time.perf_counter() + step_ms / 1e3
        model(data).sum().backward()
        for _ in range(NUM_CALLS):
            dist.all_reduce(reduced)
        time.sleep(max(0.0, until - time.perf_counter()))
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def _watched(run: Path, step_ms: float, num_steps: int) -> Watched:
    _, step = sleepy_step(step_ms)
    cpu_of(step, BLOCK)
    with distprof.record(run, steps="off") as recorder:
        step()
        before = rss_bytes()
        with_it, without = [cpu_of(step, BLOCK)], list[float]()  # the first one is the warm-up
        watching = 0.0
        for _ in range(num_steps // BLOCK):
            started = time.perf_counter()
            with_it.append(cpu_of(step, BLOCK))
            watching += time.perf_counter() - started
            with paused(recorder):
                without.append(cpu_of(step, BLOCK))
        rss = rss_bytes() - before
    written = sum(path.stat().st_size for path in run.glob("rank*/watch-*.bin"))
    costs = sorted((on - off) * 1e3 for on, off in zip(with_it[1:], without, strict=True))
    return Watched(step_ms=step_ms, num_steps=len(costs) * BLOCK, cpu_ms=fmean(costs), low_ms=costs[len(costs) // 4],
                   high_ms=costs[3 * len(costs) // 4], bytes_per_hour=written / watching * 3600, rss_mb=rss / 1e6)


def cpu_of(step: Callable[[], None], number: int) -> float:
    """Returns processor seconds per step, over all threads."""
    began = time.process_time()
    for _ in range(number):
        step()
    return (time.process_time() - began) / number


@contextmanager
def paused(recorder: Recorder) -> Iterator[None]:
    """Pauses the watch."""
    recorder.later.pause()
    yield
    recorder.later.resume(recorder.later.step)


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * STATM_PAGE
