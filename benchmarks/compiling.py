"""Measures the overhead of logging compilations: times of recompilations with and without it, in one process.

    python benchmarks/compiling.py [--rounds 15] [--shapes 6] [--layers 8] [--backend aot_eager]

A round compiles a model for `--shapes` shapes: without anything, in a recording, and with torch's own logs of
recompilations and graph breaks.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
from measuring.benchmark import Found, Option, run
from measuring.pairs import HEAD, Seconds, paired, timed_step
from measuring.tables import table
from torch import nn
from torch._logging._internal import set_logs

import distprof


@contextmanager
def recorded() -> Iterator[None]:
    """Records after the last pass, so that only compilations are logged."""
    with tempfile.TemporaryDirectory() as folder, distprof.record(
            Path(folder) / "run", steps="wait=0,count=0,time=1,trace=0") as recorder:
        recorder.step()
        yield


@contextmanager
def logged() -> Iterator[None]:
    """Enables TORCH_LOGS=recompiles,graph_breaks, without output."""
    set_logs(recompiles=True, graph_breaks=True)
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if "torch._dynamo" in name]
    for logger in loggers:
        logger.handlers = [logging.NullHandler()] if logger.handlers else []
    yield
    set_logs()


Around = Callable[[], AbstractContextManager[None]]
AROUND: dict[str, Around] = {"recorded": recorded, "torch logs": logged}


def recompilations(around: Around, args: argparse.Namespace) -> list[Seconds]:
    """Returns the times of compilations for all shapes except the first."""
    torch._dynamo.reset()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(args.layers)))
    compiled = torch.compile(model, backend=args.backend, dynamic=False)
    with around():
        compiled(torch.ones(1, 16))
        return [timed_step(partial(compiled, torch.ones(rows, 16))) for rows in range(2, args.shapes + 2)]


def measure(args: argparse.Namespace) -> Found:
    """Returns a table with a row per variant."""
    torch.set_num_threads(1)
    pairs = paired({name: partial(recompilations, around, args) for name, around in AROUND.items()},
                   partial(recompilations, nullcontext, args), args.rounds)
    return Found(text=[f"One recompilation takes {1e3 * pairs.plain_step.cpu:.1f} ms of processor time; "
                       "median (25 % .. 75 %):", table(HEAD, pairs.rows())])


if __name__ == "__main__":
    run(measure, __doc__,
        rounds=Option(default=15, smallest=1), shapes=Option(default=6, smallest=1),
        layers=Option(default=8, smallest=1), backend=Option(default="aot_eager", smallest="eager"))
