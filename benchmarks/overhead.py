"""Measures the overhead of recording: ratios of step times of a transformer with and without it, in one process.

    python benchmarks/overhead.py [--layers 4] [--width 128] [--batch 8] [--length 64] [--rounds 9] [--steps 8]
                                  [--modes plain ddp watch] [--peers deepspeed torch traceml]
                                  [--watched-steps 400] [--watched-ms 20 200]

Processor time is the cost of a step; elapsed time also includes the effect of other programs on the machine.

Each round measures plain steps, steps with something enabled, and plain steps again; a ratio is relative to the mean of
the two plain blocks. "plain" is a plain block measured in the same way: its spread is the noise of this machine, and
ratios within it are not significant. The profilers of DeepSpeed and torch are measured in the same rounds.

The watch, which runs after the passes, is measured in steps of 20 and 200 ms that mostly sleep, with ten collectives
each, in turns with steps without it: the processor time that it adds, the bytes that it writes, and its memory. Then
three programs with the same steps take turns, block by block: without a watch, under `distprof run`, and under TraceML
(`--peers traceml`, after `pip install --no-deps traceml-ai==0.5.0`); only the training processes are measured.
`--modes watch` measures nothing else; `--watched-steps 2000` takes three quarters of an hour.

Labelling of collectives is measured in steps that have some: the same model under DDP with small buckets, in a gloo
group of one rank. The default is the model of the demo, whose modules are tiny; `--layers 12 --width 512 --steps 1` is
a model with larger modules.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from measuring.benchmark import Found, Option, Ratio, files, run
from measuring.beside_peers import HEAD as BESIDE_HEAD
from measuring.beside_peers import OURS, TRACEML, beside, has_traceml
from measuring.pairs import HEAD, Pairs, Seconds, paired, timed_step
from measuring.tables import table
from measuring.watched_steps import HEAD as WATCHED_HEAD
from measuring.watched_steps import watched
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

import distprof
from distprof.model.modules import ModuleMap
from distprof.model.scopes import ModuleScopes
from distprof.recording.communication.c10d import RunningWorks
from distprof.recording.communication.labels import CollectiveRecorder

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_ddp import Transformer

Around = Callable[[], AbstractContextManager[Any]]
NOISE = 1.1
"""Ratios of processor times of different days differ by less than this factor."""


class Trainer:
    """Steps of AdamW on random tokens."""

    def __init__(self, args: argparse.Namespace, *, replicated: bool) -> None:
        torch.manual_seed(0)
        self.model: torch.nn.Module = Transformer(width=args.width, heads=args.width // 64 or 1, depth=args.layers,
                                                  length=args.length)
        if replicated:  # buckets of at most 1 MB, for many all_reduces during backward
            self.model = DistributedDataParallel(self.model, bucket_cap_mb=1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.tokens = torch.randint(1000, (args.batch, args.length + 1))

    def step(self, around_forward: Around = nullcontext, around_step: Around = nullcontext) -> Seconds:
        """Runs a step and returns its times."""
        return timed_step(partial(self._step, around_forward, around_step))

    def _step(self, around_forward: Around, around_step: Around) -> None:
        with around_step():
            with around_forward():
                out = self.model(self.tokens[:, :-1])
            loss = F.cross_entropy(out.flatten(0, 1), self.tokens[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


LIGHT = "1"
"""Value of `--ranks` with which the measured rank 0 is recorded lightly."""


def in_pass(name: str, *, ranks: str = "all") -> Callable[[Trainer, int], list[Seconds]]:
    """Returns a mode for steps in a pass; the first step, and the one that writes the results, are excluded."""
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
    """Runs steps with nothing enabled."""
    return [trainer.step() for _ in range(num_steps)]


def after_last_pass(trainer: Trainer, num_steps: int) -> list[Seconds]:
    """Runs steps after the end of a recording."""
    in_pass("time")(trainer, 1)
    return plain(trainer, num_steps)


def labels(trainer: Trainer, num_steps: int, *, timeline: bool = False) -> list[Seconds]:
    """Runs steps in which only labelling of collectives is enabled."""
    recorder = CollectiveRecorder(ModuleScopes(ModuleMap(), lambda call: call, lambda _: None), lambda: (0, None),
                                  RunningWorks(lambda call: call), lambda call: call)
    recorder.start(timeline=timeline)
    try:
        return plain(trainer, num_steps)
    finally:
        recorder.stop()


def flop_counter(trainer: Trainer, num_steps: int) -> list[Seconds]:
    """Runs steps inside torch's own FLOP counter."""
    return [trainer.step(around_step=lambda: FlopCounterMode(display=False)) for _ in range(num_steps)]


def torch_profiler(trainer: Trainer, num_steps: int, *, record_shapes: bool = False, profile_memory: bool = False,
                   with_stack: bool = False) -> list[Seconds]:
    """Runs all steps inside torch's own profiler; its start and end are excluded."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=record_shapes,
                                profile_memory=profile_memory, with_stack=with_stack):
        return plain(trainer, num_steps)


def deepspeed(trainer: Trainer, num_steps: int) -> list[Seconds]:
    """Runs steps with DeepSpeed's profiler around the forward call, as in its engine."""
    from deepspeed.profiling.flops_profiler.profiler import FlopsProfiler

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


Mode = Callable[[Trainer, int], list[Seconds]]
MODES: dict[str, Mode] = {
    "off: after the last pass": after_last_pass,
    "wait pass": in_pass("wait"),
    "time pass": in_pass("time"),
    "sync pass": in_pass("sync"),
    "trace pass": in_pass("trace"),
    "trace pass, light rank": in_pass("trace", ranks=LIGHT),
    "memory pass": in_pass("memory"),
    "count pass": in_pass("count"),
    "count pass, light rank": in_pass("count", ranks=LIGHT),
}
PEERS: dict[str, dict[str, Mode]] = {
    "torch": {
        "torch record_shapes": partial(torch_profiler, record_shapes=True),
        "torch profile_memory": partial(torch_profiler, record_shapes=True, profile_memory=True),
        "torch with_stack": partial(torch_profiler, with_stack=True),
        "torch FlopCounterMode": flop_counter},
    "deepspeed": {"DeepSpeed FlopsProfiler": deepspeed},
}
LABEL_MODES: dict[str, Mode] = {
    "labels, ends by callbacks": labels,
    "labels, ends by timeline": partial(labels, timeline=True),
    "arrivals pass": in_pass("arrivals"),
    "trace pass": in_pass("trace"),
    "trace pass, light rank": in_pass("trace", ranks=LIGHT),
    "sync pass": in_pass("sync"),
}


def measure(args: argparse.Namespace) -> Found:
    """Returns the tables and ratios of the selected modes."""
    torch.set_num_threads(1)
    text, ratios = list[str](), dict[str, Ratio]()
    if "plain" in args.modes:
        peers = {name: mode for peer in args.peers for name, mode in PEERS.get(peer, {}).items()}
        pairs = _paired(Trainer(args, replicated=False), MODES | peers, args)
        text += _text("", pairs)
        ratios |= {f"{name}: CPU / plain": Ratio(value=pairs.cpu(name), factor=NOISE)
                   for name in ("off: after the last pass", "time pass", "trace pass", "count pass")}
    if "ddp" in args.modes:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        try:
            pairs = _paired(Trainer(args, replicated=True), LABEL_MODES, args)
        finally:
            dist.destroy_process_group()
        text += _text("under DDP, ", pairs)
        ratios["arrivals pass: CPU / plain"] = Ratio(value=pairs.cpu("arrivals pass"), factor=NOISE)
    if "watch" in args.modes:
        found = [watched(step_ms, args.watched_steps) for step_ms in args.watched_ms]
        text += ["The watch, with ten collectives in a step; mean (25 % .. 75 % of pairs of blocks):",
                 table(WATCHED_HEAD, [one.row() for one in found])]
        if "traceml" in args.peers:
            more, of = _beside_peers(args)
            text, ratios = text + more, ratios | of
    return Found(text=text, ratios=ratios)


def _beside_peers(args: argparse.Namespace) -> tuple[list[str], dict[str, Ratio]]:
    """Returns a table of the watched programs, and the cost of distprof's watch relative to TraceML's if that is
    installed."""
    with files(args) as folder:
        found = [beside(folder, step_ms, args.watched_steps) for step_ms in args.watched_ms]
    text = ["The same steps in programs of their own, in turns; mean (25 % .. 75 % of turns):",
            table(BESIDE_HEAD, [row for one in found for row in one.rows()])]
    if not has_traceml():
        return [*text, "TraceML is not installed: `pip install --no-deps traceml-ai==0.5.0`."], {}
    return text, {f"the watch, {one.step_ms:g} ms: CPU / TraceML": Ratio(
        value=max(fmean(one.more_ms(OURS)), 0.0) / max(fmean(one.more_ms(TRACEML)), 1e-3), factor=1.5)
        for one in found}


def _paired(trainer: Trainer, modes: Mapping[str, Mode], args: argparse.Namespace) -> Pairs:
    return paired({name: partial(mode, trainer, args.steps) for name, mode in modes.items()},
                  partial(plain, trainer, args.steps), args.rounds)


def _text(where: str, pairs: Pairs) -> list[str]:
    plain_step = pairs.plain_step
    return [f"One thread, {where}plain step {plain_step.cpu * 1e3:.1f} ms of processor time, "
            f"{plain_step.wall * 1e3:.1f} ms elapsed; median (25 % .. 75 %):", table(HEAD, pairs.rows())]


if __name__ == "__main__":
    run(measure, __doc__,
        layers=Option(default=4, smallest=1), width=Option(default=128, smallest=64),
        batch=Option(default=8, smallest=1), length=Option(default=64, smallest=8),
        rounds=Option(default=9, smallest=1), steps=Option(default=8, smallest=1),
        modes=Option(default=["plain", "ddp", "watch"], smallest=["plain", "ddp", "watch"]),
        watched_steps=Option(default=400, smallest=50, help="of each length"),
        watched_ms=Option(default=[20, 200], smallest=[20], help="lengths of watched steps"),
        peers=Option(default=["torch", "deepspeed", "traceml"], smallest=["torch", "traceml"],
                     help="that are installed"))
