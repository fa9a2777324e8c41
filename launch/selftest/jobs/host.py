"""The first job of `distprof selftest`: known products, copies, sleeps and collectives on two ranks; the last is late.

The ranks communicate through gloo. They compute on the CPU, or share a GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends each rank without a traceback

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from distprof.launch.selftest.jobs.planted import Notes, use_loopback  # noqa: E402

ROWS, INNER, COLUMNS = 48, 96, 160
COPY_BYTES = 1 << 20
REDUCED_BYTES, REDUCES, SENT_BYTES = 1 << 18, 2, 4096
SLEEP_S, LATE_S = 0.05, 0.08


class Product(nn.Module):
    """One matrix product; its input needs no gradient, so that backward also has only one product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(INNER, COLUMNS) / INNER)

    def forward(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight)


class Copies(nn.Module):
    """A copy of known size; if the target is on a GPU, from host to device."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("target", torch.zeros(COPY_BYTES // 4))
        self.source = torch.ones(COPY_BYTES // 4)

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("target").copy_(self.source)
        return x


class SlowForward(nn.Module):
    """Sleeps in forward."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes = notes

    def forward(self, x: Tensor) -> Tensor:
        with self.notes.timed("forward"):
            time.sleep(SLEEP_S)  # planted: forward
        return x * 1.0


class _Sleeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, notes: Notes) -> Tensor:
        ctx.notes = notes
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        with ctx.notes.timed("backward"):
            time.sleep(SLEEP_S)  # planted: backward
        return grads[0], None


class SlowBackward(nn.Module):
    """Sleeps in backward."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes = notes

    def forward(self, x: Tensor) -> Tensor:
        apply: Any = _Sleeping.apply
        y: Tensor = apply(x, self.notes)
        return y


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


class SlowLoading(Dataset[Tensor]):
    """A dataset whose samples are batches; getting one sleeps."""

    def __init__(self, notes: Notes, batches: int) -> None:
        self.notes, self.batches = notes, batches

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> Tensor:
        with self.notes.timed("loader"):
            time.sleep(SLEEP_S)  # planted: loader
        return torch.ones(ROWS, INNER)


class Planted(nn.Module):
    """The model."""

    def __init__(self, notes: Notes, late_s: float) -> None:
        super().__init__()
        self.product, self.copies = Product(), Copies()
        self.slow_forward, self.slow_backward, self.late = SlowForward(notes), SlowBackward(notes), Late(notes, late_s)

    def forward(self, x: Tensor) -> Tensor:
        x = self.copies(self.product(x))
        return torch.mean(self.late(self.slow_backward(self.slow_forward(x))))


def device_of_collectives(notes: Notes, device: torch.device) -> torch.device:
    """Returns the device of the job if gloo supports it, else the CPU; the same on all ranks."""
    reached = notes.attempt("gloo", lambda: dist.all_reduce(torch.zeros(1, device=device)) or device)
    notes.facts["communicates_on"] = str(reached or "cpu")
    return reached or torch.device("cpu")


def communicate(model: Planted, sent: Tensor, group_size: int) -> None:
    """Collectives of known number and size: all_reduce of the padded gradients, and a broadcast."""
    gradient = model.product.weight.grad
    assert gradient is not None
    padded = torch.zeros(REDUCED_BYTES // 4, device=sent.device)
    padded[:gradient.numel()] = gradient.flatten()
    for _ in range(REDUCES):
        dist.all_reduce(padded)
    dist.broadcast(sent, src=0)
    gradient.copy_(padded[:gradient.numel()].view(gradient.shape) / group_size**REDUCES)


def train(notes: Notes, device: torch.device, steps: int) -> None:
    """Runs all steps."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = Planted(notes, LATE_S if rank == size - 1 else 0.0).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    sent = torch.zeros(SENT_BYTES // 4, device=device_of_collectives(notes, device))
    for batch in DataLoader(SlowLoading(notes, steps), batch_size=None):
        with notes.timed("between"):
            time.sleep(SLEEP_S)  # planted: between
        optimizer.zero_grad()
        model(batch.to(device)).backward()
        communicate(model, sent, size)
        optimizer.step()
        notes.end_step()


def main() -> None:
    """Runs one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    use_loopback()
    dist.init_process_group("gloo")
    device = torch.device(args.device)
    notes = Notes(args.notes, dist.get_rank(), {
        "device": str(device), "backend": dist.get_backend(), "script": os.fspath(__file__),
        "rows": ROWS, "inner": INNER, "columns": COLUMNS, "copy_bytes": COPY_BYTES, "reduced_bytes": REDUCED_BYTES,
        "reduces": REDUCES, "sent_bytes": SENT_BYTES})
    train(notes, device, args.steps)
    notes.write()
    dist.destroy_process_group()
    time.sleep(0.1)  # a thread of gloo may still be freeing the last collective (torch 2.13)


if __name__ == "__main__":
    main()
