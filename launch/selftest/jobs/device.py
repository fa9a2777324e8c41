"""The second job of `distprof selftest`: GPU work in parts of known size, whose durations are measured with events.

One rank per GPU, through NCCL; the last of several is late.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends each rank without a traceback

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from distprof.launch.selftest.jobs.planted import Notes  # noqa: E402

ROWS, INNER, COLUMNS = 512, 1024, 768
UP_BYTES, DOWN_BYTES, ACROSS_BYTES = (8 << 20) + 4096, (4 << 20) + 8192, (16 << 20) + 12288
"""Bytes of copies from host to device, from device to host and within the device; nothing else has these sizes."""
GRAPH_KERNELS, REPLAYS = 16, 2
CHAIN_SIZE = 2048
REDUCED_BYTES, REDUCES, SENT_BYTES = 1 << 22, 2, 1 << 16
SPIN_NS, SIDE_NS, CHAIN_NS = 20e6, 15e6, 20e6
"""Intended durations of parts; the actual ones are measured."""
LATE_S = 0.06
MOST_PRODUCTS = 2000
DEVICE = "cuda"


class Stopwatch:
    """Measures parts of steps with torch events, which are read at the end of the step."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._running: list[tuple[str, Any, Any]] = []

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measures a block on the current stream."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self._running.append((name, start, end))

    def read(self) -> None:
        """Stores the measured durations in the notes; the device must be idle."""
        for name, start, end in self._running:
            self._notes.add(name, (self._notes.attempt(name, partial(start.elapsed_time, end)) or 0.0) * 1e6)
        self._running.clear()


def measured_ns(work: Callable[[], Any]) -> float:
    """Returns the duration of the second of two calls on the device."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    work()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e6


def cycles_per_ns() -> float:
    """Returns the clock rate of the kernel that spins for a number of cycles."""
    cycles = 10_000_000
    return cycles / measured_ns(lambda: torch.cuda._sleep(cycles))


class Part(nn.Module):
    """A part of the job that is skipped after it has failed."""

    name = ""

    def __init__(self, notes: Notes, watch: Stopwatch) -> None:
        super().__init__()
        self.notes, self.watch = notes, watch
        notes.attempt(self.name, self.prepare)

    def forward(self, x: Tensor) -> Tensor:
        self.notes.attempt(self.name, self.work)
        return x

    def prepare(self) -> None:
        """Runs once."""

    def work(self) -> None:
        """Runs in every step."""


class Spin(Part):
    """One kernel of known duration."""

    name = "spin"

    def prepare(self) -> None:
        self.cycles = int(SPIN_NS * cycles_per_ns())

    def work(self) -> None:
        with self.watch.timed(self.name):
            torch.cuda._sleep(self.cycles)


class SideStream(Part):
    """A kernel of known duration on a side stream, for which the main stream waits."""

    name = "side"

    def prepare(self) -> None:
        self.cycles, self.stream = int(SIDE_NS * cycles_per_ns()), torch.cuda.Stream()
        self.counter = torch.zeros(4096, device=DEVICE)

    def work(self) -> None:
        main = torch.cuda.current_stream()
        self.counter.add_(1)
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream), self.watch.timed(self.name):
            torch.cuda._sleep(self.cycles)
        main.wait_stream(self.stream)
        self.counter.add_(1)


class Copies(Part):
    """Copies of known size: to the device, from it, and within it."""

    name = "copies"

    def prepare(self) -> None:
        self.up = torch.ones(UP_BYTES, dtype=torch.uint8).pin_memory(), self._on_device(UP_BYTES)
        self.down = self._on_device(DOWN_BYTES), torch.ones(DOWN_BYTES, dtype=torch.uint8).pin_memory()
        self.across = self._on_device(ACROSS_BYTES), self._on_device(ACROSS_BYTES)

    def _on_device(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=DEVICE)

    def work(self) -> None:
        for source, target in (self.up, self.down, self.across):
            target.copy_(source, non_blocking=True)


class Graph(Part):
    """A CUDA graph of known kernels, replayed."""

    name = "graph"

    def prepare(self) -> None:
        self.counter = torch.zeros(1 << 16, device=DEVICE)
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            self.counter.add_(1)
        torch.cuda.current_stream().wait_stream(warm)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            for _ in range(GRAPH_KERNELS):
                self.counter.add_(1)

    def work(self) -> None:
        for _ in range(REPLAYS):
            self.graph.replay()


class Chain(Part):
    """Back-to-back matrix products, which keep the device busy; events measure their total duration."""

    name = "chain"

    def prepare(self) -> None:
        self.left, self.right, self.out = (torch.ones(1, CHAIN_SIZE, CHAIN_SIZE, device=DEVICE) for _ in range(3))
        each = measured_ns(lambda: [torch.bmm(self.left, self.right, out=self.out) for _ in range(10)]) / 10
        self.products = min(max(int(CHAIN_NS / each), 1), MOST_PRODUCTS)
        self.notes.facts["chain_flops"] = self.products * 2 * CHAIN_SIZE**3

    def work(self) -> None:
        with self.watch.timed(self.name):
            for _ in range(self.products):
                torch.bmm(self.left, self.right, out=self.out)


class Late(nn.Module):
    """Sleeps on the last rank only."""

    def __init__(self, notes: Notes, seconds: float) -> None:
        super().__init__()
        self.notes, self.seconds = notes, seconds

    def forward(self, x: Tensor) -> Tensor:
        if self.seconds:
            with self.notes.timed("late"):
                time.sleep(self.seconds)  # planted: late
        return x * 1.0


class Product(nn.Module):
    """One matrix product; its input needs no gradient, so that backward also has only one product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(INNER, COLUMNS) / INNER)

    def forward(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight)


class Planted(nn.Module):
    """The model."""

    def __init__(self, notes: Notes, watch: Stopwatch, late_s: float) -> None:
        super().__init__()
        self.product, self.late = Product(), Late(notes, late_s)
        self.spin, self.side, self.copies = Spin(notes, watch), SideStream(notes, watch), Copies(notes, watch)
        self.graph, self.chain = Graph(notes, watch), Chain(notes, watch)

    def forward(self, x: Tensor) -> Tensor:
        x = self.late(self.product(x))
        return torch.mean(self.chain(self.graph(self.copies(self.side(self.spin(x))))))


def communicate(reduced: Tensor, sent: Tensor) -> None:
    """Collectives of known number and size."""
    for _ in range(REDUCES):
        dist.all_reduce(reduced)
    dist.broadcast(sent, src=0)


def train(notes: Notes, steps: int) -> None:
    """Runs all steps; the device is idle at the end of each."""
    rank, size, watch = dist.get_rank(), dist.get_world_size(), Stopwatch(notes)
    model = Planted(notes, watch, LATE_S if size > 1 and rank == size - 1 else 0.0).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(ROWS, INNER, device=DEVICE)
    reduced, sent = torch.zeros(REDUCED_BYTES // 4, device=DEVICE), torch.zeros(SENT_BYTES // 4, device=DEVICE)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).backward()
        notes.attempt("collectives", lambda: communicate(reduced, sent))
        torch.cuda.synchronize()
        watch.read()
        optimizer.step()
        notes.end_step()


def main() -> None:
    """Runs one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    notes = Notes(args.notes, dist.get_rank(), {
        "device": str(device), "backend": dist.get_backend(), "script": os.fspath(__file__),
        "rows": ROWS, "inner": INNER, "columns": COLUMNS, "up_bytes": UP_BYTES, "down_bytes": DOWN_BYTES,
        "across_bytes": ACROSS_BYTES, "graph_kernels": GRAPH_KERNELS * REPLAYS,
        "reduced_bytes": REDUCED_BYTES, "reduces": REDUCES, "sent_bytes": SENT_BYTES})
    train(notes, args.steps)
    notes.write()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
