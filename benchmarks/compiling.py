"""What it costs to note compilations: the time of a recompilation with and without it, in turns in one process.

    python benchmarks/compiling.py [--rounds 15] [--shapes 6] [--backend aot_eager]

A round compiles a model for so many shapes, once each as it is, in a recording, and with torch's logs of recompilations
and graph breaks, which is what torch itself has to tell why.
"""

from __future__ import annotations

import argparse
import logging
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from torch import nn

import distprof

torch.set_num_threads(1)


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
    torch._logging.set_logs(recompiles=True, graph_breaks=True)
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if "torch._dynamo" in name]
    for logger in loggers:
        logger.handlers = [logging.NullHandler()] if logger.handlers else []
    yield
    torch._logging.set_logs()


AROUND: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "plain (noise)": nullcontext, "recorded": recorded, "torch logs": logged}


def seconds_of(around: Callable[[], AbstractContextManager[None]], args: argparse.Namespace) -> tuple[float, float]:
    """Processor time and elapsed time of a compilation, in the mean over the shapes but the first."""
    torch._dynamo.reset()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(8)))
    compiled = torch.compile(model, backend=args.backend, dynamic=False)
    with around():
        compiled(torch.ones(1, 16))
        begin = time.process_time(), time.perf_counter()
        for rows in range(2, args.shapes + 2):
            compiled(torch.ones(rows, 16))
        return ((time.process_time() - begin[0]) / args.shapes, (time.perf_counter() - begin[1]) / args.shapes)


def main() -> None:
    """Prints one line per way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", type=int, default=6)
    parser.add_argument("--backend", default="aot_eager")
    args = parser.parse_args()
    plain, ratios = list[float](), {name: list[tuple[float, float]]() for name in AROUND}
    seconds_of(nullcontext, args)
    for _ in range(args.rounds):
        for name, around in AROUND.items():
            before, timed, after = (seconds_of(one, args) for one in (nullcontext, around, nullcontext))
            plain += [before[0], after[0]]
            ratios[name].append((2 * timed[0] / (before[0] + after[0]), 2 * timed[1] / (before[1] + after[1])))
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {args.backend}; {args.rounds} rounds "
          f"of {args.shapes} recompilations; plain {1e3 * statistics.median(plain):.1f} ms of processor time each")
    print(f"{'over plain':<16}{'processor time':>24}{'elapsed time':>24}")
    for name, values in ratios.items():
        print(f"{name:<16}" + "".join("{1:>10.3f}{0:>7.3f}{2:>7.3f}".format(*statistics.quantiles(column, n=4))
                                      for column in zip(*values, strict=True)))


if __name__ == "__main__":
    main()
