"""What it costs to note compilations: the time of a recompilation with and without it, in turns in one process.

    python benchmarks/compiling.py [--rounds 15] [--shapes 6] [--layers 8] [--backend aot_eager]

A round compiles a model for so many shapes, once each as it is, in a recording, and with torch's logs of recompilations
and graph breaks, which is what torch itself has to tell why.
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
    """A recording whose passes are over, so that nothing but compilations is noted."""
    with tempfile.TemporaryDirectory() as folder, distprof.record(
            Path(folder) / "run", steps="wait=0,count=0,time=1,trace=0") as recorder:
        recorder.step()
        yield


@contextmanager
def logged() -> Iterator[None]:
    """TORCH_LOGS=recompiles,graph_breaks, to nowhere."""
    set_logs(recompiles=True, graph_breaks=True)
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if "torch._dynamo" in name]
    for logger in loggers:
        logger.handlers = [logging.NullHandler()] if logger.handlers else []
    yield
    set_logs()


Around = Callable[[], AbstractContextManager[None]]
AROUND: dict[str, Around] = {"recorded": recorded, "torch logs": logged}


def recompilations(around: Around, args: argparse.Namespace) -> list[Seconds]:
    """Seconds for each shape but the first."""
    torch._dynamo.reset()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(args.layers)))
    compiled = torch.compile(model, backend=args.backend, dynamic=False)
    with around():
        compiled(torch.ones(1, 16))
        return [timed_step(partial(compiled, torch.ones(rows, 16))) for rows in range(2, args.shapes + 2)]


def measure(args: argparse.Namespace) -> Found:
    """A row for each way."""
    torch.set_num_threads(1)
    pairs = paired({name: partial(recompilations, around, args) for name, around in AROUND.items()},
                   partial(recompilations, nullcontext, args), args.rounds)
    return Found(text=[f"One recompilation takes {1e3 * pairs.plain_step.cpu:.1f} ms of processor time; "
                       "median (25 % .. 75 %):", table(HEAD, pairs.rows())])


if __name__ == "__main__":
    run(measure, __doc__,
        rounds=Option(default=15, smallest=1), shapes=Option(default=6, smallest=1),
        layers=Option(default=8, smallest=1), backend=Option(default="aot_eager", smallest="eager"))
