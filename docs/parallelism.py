"""Makes parallelism.md: runs every kind of parallel job, and compares what distprof finds with the unsharded model.

    python docs/parallelism.py > docs/parallelism.md
    python docs/parallelism.py by_hand "tp 2" "pp 2"
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
STEPS = "wait=1,count=1,time=1,trace=2,arrivals=0"
BY_HAND = {
    "dp": "data parallel: gradients averaged by hand",
    "tp": "tensor parallel: attention heads and MLP split, results added up by all_reduce",
    "pp": "pipeline: stages that send and receive",
    "cp": "context parallel: keys and values go round a ring of send and receive",
    "ulysses": "context parallel: heads against sequence by all_to_all",
    "gather": "context parallel: keys and values joined by all_gather",
    "ep": "expert parallel: tokens exchanged by all_to_all",
}
BY_FRAMEWORK = {
    "ddp": "DistributedDataParallel",
    "fsdp1": "FullyShardedDataParallel",
    "fsdp2": "fully_shard",
    "hsdp": "fully_shard with 2 replicas",
    "tp": "DTensor, ColwiseParallel and RowwiseParallel",
    "sp": "the same with SequenceParallel norms",
    "fsdp2-tp": "tp 2 inside of fully_shard",
    "1f1b": "Schedule1F1B with 4 microbatches",
    "interleaved": "ScheduleInterleaved1F1B, 2 stages a rank",
}
"""Kinds of `examples/by_framework.py`; a job's number is that of its ranks."""
JOBS = {
    "by_hand": ("dp 1", "ep 1", *(f"{kind} {size}" for kind in BY_HAND for size in (2, 4)),
                "dp 4 tp 2", "dp 2 tp 4", "pp 4 tp 2", "pp 2 tp 4", "pp 4 dp 2", "pp 2 dp 4", "pp 2 dp 2 tp 2",
                "tp 2 recompute", "pp 2 recompute", "cp 2 recompute"),
    "by_framework": ("ddp 2", "fsdp1 2", "fsdp1 4", "fsdp2 2", "fsdp2 4", "hsdp 4", "tp 2", "tp 4", "sp 2", "sp 4",
                     "fsdp2-tp 4", "1f1b 2", "1f1b 4", "interleaved 2", "ddp 2 recompute", "fsdp2 2 recompute",
                     "tp 2 recompute", "1f1b 2 recompute"),
}
"""By the example that is run."""
HEAD = """# Parallel jobs

What totals of a job are, kind by kind, on a transformer of 4 blocks.

* **per GPU**: mean over ranks. **mp x**: the law, mp_size x per GPU. **once**: every parameter once, however many ranks
  hold it.
* **unsharded**: the same model counted on one rank by torch's FlopCounterMode, on the batches of all ranks that divide
  one replica: ranks that hold different experts each have a batch of their own.
* **stored**: what one replica of the model takes on all its ranks. **samples a step**: of the whole job; ranks that
  divide a model or a sequence work on the same samples, ranks with other experts do not.
* `mp x` params are more than the model where ranks hold replicas: norms under tp, all but experts under ep, everything
  under cp. FLOPs are those of the unsharded model wherever no work is done twice.
* **recompute**: forward calls that activation checkpointing repeats in backward. torch stops repeating a block when all
  that was saved is there again: the last layer of each block is not.

This page is made by `docs/parallelism.py` and checked by a test.

"""
INFERRED = """## By hand

Jobs of `examples/by_hand.py`, made parallel with `torch.distributed` alone: no DeviceMesh, no DTensor, no wrapper says
how. distprof infers the sizes from what ranks hold (names and checksums of parameters) and exchange (in the forward
pass of modules, and by messages). Where two topologies explain the same facts it names none: totals are marked
`not certain`, `--strict` fails, and a flag (`--dp`, `--tp`, `--pp`, `--cp`, `--ep` of `run`, `merge`, `stats` and
`comms`) settles it.

"""
SAID = """
## With torch's own wrappers

Jobs of `examples/by_framework.py`: a DeviceMesh, stages or wrappers say the sizes.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job and what was found about it."""

    job: str
    example: str
    summary: dict[str, Any]
    unsharded: dict[str, int]


def recorded(example: str, jobs: Sequence[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Records each job in processes that are forked from this one."""
    import torch.distributed  # noqa: F401 (once, before the forks)

    import distprof

    sys.path.insert(0, str(EXAMPLES))
    main = import_module(example).main
    for job in jobs:
        run, words = folder / f"{example}-{job}".replace(" ", "-"), job.split()
        os.environ["DISTPROF_RUN_ID"] = run.name

        def rank(run: Path = run, words: list[str] = words) -> None:
            with distprof.record(run, steps=STEPS):
                main(words)

        fork_ranks(prod(sizes_of(job).values()), rank)
        yield job, run


def sizes_of(job: str) -> dict[str, int]:
    """`pp 2 tp 2 recompute` -> {"pp": 2, "tp": 2}."""
    words = job.removesuffix(" recompute").split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def fork_ranks(world_size: int, rank: Callable[[], None]) -> None:
    """Runs the function in that many processes, with the variables of torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for number in range(world_size):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(world_size),
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            code = 1
            try:
                rank()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    failed = [code for code in (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children) if code]
    if failed:
        raise SystemExit(f"ranks failed: {failed}")


def unsharded(example: str, job: str) -> dict[str, int]:
    """Counts the model of a job on one rank with torch's FlopCounterMode."""
    import torch

    model = _whole_model(example, job)
    module: Any = import_module(example)
    batch = torch.randn(module.BATCH * sizes_of(job).get("ep", 1), module.LENGTH, module.WIDTH)
    model.recompute = False
    fwd_flops, bwd_flops = _flops(model, batch)
    model.recompute = job.endswith("recompute")
    _, both = _flops(model, batch)
    return {"params": sum(parameter.numel() for parameter in model.parameters()), "fwd_flops": fwd_flops,
            "bwd_flops": bwd_flops, "recompute_flops": both - bwd_flops}


def _whole_model(example: str, job: str) -> Any:
    module: Any = import_module(example)
    if example == "by_framework":
        return module.Net()
    return module.Stage({"ep": Alone()} if "ep" in sizes_of(job) else {})


def _flops(model: Any, batch: Any) -> tuple[int, int]:
    """Of forward, and of backward."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as forward:
        out = model(batch)
    with FlopCounterMode(display=False) as backward:
        out.square().mean().backward()
    return forward.get_total_flops(), backward.get_total_flops()


class Alone:
    """An axis of one rank."""

    size, place = 1, 0


def rows(example: str, jobs: Sequence[str] = ()) -> Iterator[Row]:
    """Runs jobs of an example, all without `jobs`, and reads them."""
    from distprof.merge.commands.stats import stats

    with tempfile.TemporaryDirectory() as folder:
        for job, run in recorded(example, jobs or JOBS[example], Path(folder)):
            yield Row(job=job, example=example, summary=json.loads(stats(run, as_json=True)),
                      unsharded=unsharded(example, job))


def page() -> str:
    """The page."""
    return HEAD + INFERRED + _part("by_hand", BY_HAND) + SAID + _part("by_framework", BY_FRAMEWORK)


def _part(example: str, kinds: Mapping[str, str]) -> str:
    meaning = [f"* **{kind}**: {what}." for kind, what in kinds.items()]
    return "\n".join([*meaning, "", *table(list(rows(example)))]) + "\n"


def table(found: Sequence[Row]) -> list[str]:
    """Lines of a table."""
    return ["| job | found | params: per GPU | mp x | once | unsharded | stored | forward FLOPs: per GPU | mp x | "
            "unsharded | backward: mp x | unsharded | recompute: mp x | unsharded | samples a step |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            *map(line, found)]


def line(row: Row) -> str:
    """Its line of the table."""
    summary, alone = row.summary, row.unsharded
    model, samples = summary["model"], summary["step"]["samples"]
    sizes = " x ".join(f"{axis} {size}" for axis, size in summary["topology"].items() if size > 1) or "1 rank"
    shown = sizes if summary["topology_certain"] else f"**not certain**, taken for {sizes}"
    cells = [row.job, shown, summary["per_gpu"]["params"]["mean"], model["params"], model["unique_params"],
             alone["params"], model["stored_params"], summary["per_gpu"]["fwd_flops"]["mean"]]
    for key in ("fwd_flops", "bwd_flops", "recompute_flops"):
        cells += [model[key], alone[key]]
    cells.append(_whole(samples))
    return f"| {' | '.join(f'{cell:,}' if isinstance(cell, (int, float)) else cell for cell in cells)} |"


def _whole(number: float | None) -> int | str:
    return "unknown" if number is None else round(number)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    if sys.argv[1:]:  # an example, and jobs of it
        sys.stdout.write("\n".join(table(list(rows(sys.argv[1], sys.argv[2:])))) + "\n")
    else:
        sys.stdout.write(page())
