"""What recording costs: step times of a transformer with and without it, paired in one process, as ratios.

    python benchmarks/overhead.py [--layers 12] [--width 512] [--batch 8] [--length 64] [--rounds 9] [--steps 3]

Processor time is what a step costs; elapsed time holds what others do on the machine as well.

Each round times plain steps, steps with something on, and plain steps again; a ratio is to the mean of the two plain
blocks. "plain" is a plain block measured the same way: its spread is the noise of this machine, and a ratio inside it
is no difference. The profilers of DeepSpeed and torch are measured in the same rounds, where they are installed.

What it costs to label collectives is measured in steps that have some: the same model under DDP with small buckets, in
a gloo group of one rank. --labels measures that alone. --job measures what recording adds to a whole short job instead
([--ranks 2] [--rounds 9]).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from short_job import short_job
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

import distprof
from distprof.model.modules import ModuleMap
from distprof.model.scopes import ModuleScopes
from distprof.recording.communication.labels import CollectiveRecorder

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from train_ddp import Transformer

Seconds = tuple[float, float]
"""Processor time and elapsed time."""
Around = Callable[[], AbstractContextManager[Any]]


class Trainer:
    """Steps of AdamW on random tokens."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.model = Transformer(width=args.width, heads=args.width // 64 or 1, depth=args.layers, length=args.length)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.tokens = torch.randint(1000, (args.batch, args.length + 1))

    def step(self, around_forward: Around = nullcontext, around_step: Around = nullcontext) -> Seconds:
        """One step; gives its seconds."""
        begin = time.process_time(), time.perf_counter()
        with around_step():
            with around_forward():
                out = self.model(self.tokens[:, :-1])
            loss = F.cross_entropy(out.flatten(0, 1), self.tokens[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return time.process_time() - begin[0], time.perf_counter() - begin[1]


class ReplicatedTrainer(Trainer):
    """The same under DDP, with buckets of 1 MB at most: many all_reduces while backward runs."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.model = DistributedDataParallel(self.model, bucket_cap_mb=1)


LIGHT = "1"
"""Ranks that are recorded fully where the one that is measured, rank 0, is recorded lightly."""


def in_pass(name: str, *, ranks: str = "all") -> Callable[[Trainer, int], list[Seconds]]:
    """Steps inside one pass; the first, and the one that writes the results, are left out."""
    def block(trainer: Trainer, num_steps: int) -> list[Seconds]:
        plan = dict.fromkeys(("wait", "count", "time", "trace", "arrivals"), 0) | {name: num_steps + 2}
        plan |= {"count": 1} if name == "wait" else {}
        with tempfile.TemporaryDirectory() as folder, distprof.record(
                Path(folder) / "run", steps=",".join(f"{key}={value}" for key, value in plan.items()),
                ranks=ranks) as recorder:
            trainer.step()
            times = [trainer.step() for _ in range(num_steps)]
            while recorder.recording:
                trainer.step()
        return times

    return block


def plain(trainer: Trainer, num_steps: int) -> list[Seconds]:
    """Nothing is on."""
    return [trainer.step() for _ in range(num_steps)]


def after_last_pass(trainer: Trainer, num_steps: int) -> list[Seconds]:
    """Recording is over."""
    in_pass("time")(trainer, 1)
    return plain(trainer, num_steps)


def labels(trainer: Trainer, num_steps: int, *, timeline: bool = False) -> list[Seconds]:
    """Collectives are labelled, and nothing else is on."""
    recorder = CollectiveRecorder(ModuleScopes(ModuleMap(), lambda call: call, lambda _: None), lambda: (0, None),
                                  lambda call: call)
    recorder.start(timeline=timeline)
    try:
        times = plain(trainer, num_steps)
    finally:
        recorder.stop()
    labels.per_step = len(recorder.calls) / num_steps  # type: ignore[attr-defined]
    return times


def flop_counter(trainer: Trainer, num_steps: int) -> list[Seconds]:
    """torch's own counter around whole steps."""
    return [trainer.step(around_step=lambda: FlopCounterMode(display=False)) for _ in range(num_steps)]


def torch_profiler(trainer: Trainer, num_steps: int, **options: bool) -> list[Seconds]:
    """torch's own profiler around all steps; its start and end are left out."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options):
        return plain(trainer, num_steps)


def deepspeed() -> Callable[[Trainer, int], list[Seconds]] | None:
    """DeepSpeed's profiler around the forward call, as its engine has it; None where it is not installed."""
    try:
        from deepspeed.profiling.flops_profiler.profiler import FlopsProfiler
    except ImportError:
        return None

    def block(trainer: Trainer, num_steps: int) -> list[Seconds]:
        profiler = FlopsProfiler(trainer.model)

        @contextmanager
        def profiled() -> Iterator[None]:
            profiler.start_profile()
            yield
            profiler.stop_profile()

        @contextmanager
        def ended() -> Iterator[None]:
            yield
            profiler.end_profile()

        return [trainer.step(profiled, ended) for _ in range(num_steps)]

    return block


MODES: dict[str, Callable[[Trainer, int], list[Seconds]] | None] = {
    "plain (noise)": plain,
    "off: after the last pass": after_last_pass,
    "wait pass": in_pass("wait"),
    "time pass": in_pass("time"),
    "sync pass": in_pass("sync"),
    "trace pass": in_pass("trace"),
    "trace pass, light rank": in_pass("trace", ranks=LIGHT),
    "count pass, light rank": in_pass("count", ranks=LIGHT),
    "memory pass": in_pass("memory"),
    "torch record_shapes": partial(torch_profiler, record_shapes=True),
    "torch profile_memory": partial(torch_profiler, record_shapes=True, profile_memory=True),
    "torch with_stack": partial(torch_profiler, with_stack=True),
    "count pass": in_pass("count"),
    "DeepSpeed FlopsProfiler": deepspeed(),
    "torch FlopCounterMode": flop_counter,
}
LABEL_MODES: dict[str, Callable[[Trainer, int], list[Seconds]] | None] = {
    "plain (noise)": plain,
    "labels, ends by callbacks": labels,
    "labels, ends by timeline": partial(labels, timeline=True),
    "arrivals pass": in_pass("arrivals"),
    "trace pass": in_pass("trace"),
    "trace pass, light rank": in_pass("trace", ranks=LIGHT),
    "sync pass": in_pass("sync"),
}


def measure(trainer: Trainer, modes: dict[str, Any], rounds: int, num_steps: int) -> (
        tuple[list[Seconds], dict[str, list[Seconds]]]):
    """Plain step times, and ratios to the plain blocks around by mode."""
    plain(trainer, 2 * num_steps)
    seconds: list[Seconds] = []
    ratios: dict[str, list[Seconds]] = {}
    for _ in range(rounds):
        for name, block in modes.items():
            if block is not None:
                before, timed, after = (median(one(trainer, num_steps)) for one in (plain, block, plain))
                seconds += [before, after]
                ratios.setdefault(name, []).append((2 * timed[0] / (before[0] + after[0]),
                                                    2 * timed[1] / (before[1] + after[1])))
    return seconds, ratios


def median(values: list[Seconds]) -> Seconds:
    """Of each clock."""
    return statistics.median(cpu for cpu, _ in values), statistics.median(wall for _, wall in values)


def main() -> None:
    """Prints one line per mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 12), ("width", 512), ("batch", 8), ("length", 64), ("rounds", 9), ("steps", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--labels", action="store_true")
    parser.add_argument("--job", action="store_true")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", action="append", metavar="MODE")
    args = parser.parse_args()
    for modes in (MODES, LABEL_MODES):
        for name in [name for name in modes if args.only and name not in args.only]:
            del modes[name]
    if args.job:
        short_job(args.ranks, args.rounds)
        return
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, 1 thread; "
          f"{args.layers} layers, width {args.width}, batch {args.batch} x {args.length}; "
          f"{args.rounds} rounds of {args.steps} steps")
    if not args.labels:
        trainer = Trainer(args)
        print(f"{sum(1 for _ in trainer.model.modules())} modules")
        show(MODES, *measure(trainer, MODES, args.rounds, args.steps))
    found = measure(ReplicatedTrainer(args), LABEL_MODES, args.rounds, args.steps)
    per_step = getattr(labels, "per_step", None)
    print("\nunder DDP" + ("" if per_step is None else f", {per_step:.0f} collectives a step"))
    show(LABEL_MODES, *found)
    dist.destroy_process_group()


def show(modes: dict[str, Any], seconds: list[Seconds], ratios: dict[str, list[Seconds]]) -> None:
    """A line per mode."""
    cpu, wall = median(seconds)
    print(f"plain step {cpu * 1e3:.1f} ms of processor time, {wall * 1e3:.1f} ms elapsed")
    print(f"{'over plain':<28}{'processor time':>24}{'elapsed time':>28}")
    print(f"{'':<28}" + f"{'median':>10}{'25 %':>7}{'75 %':>7}" * 2)
    for name in modes:
        print(f"{name:<28}" + (f"{'not installed':>24}" if name not in ratios else "".join(
            "{1:>10.3f}{0:>7.3f}{2:>7.3f}".format(*statistics.quantiles(values, n=4))
            for values in zip(*ratios[name], strict=True))))


if __name__ == "__main__":
    main()
