"""Makes parallelism.md: runs every kind of parallel job, and compares what distprof finds with the unsharded model.

    python docs/parallelism.py > docs/parallelism.md
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
STEPS = "wait=1,count=1,time=1,trace=2,arrivals=0"
KINDS = {
    "dp": "data parallel: gradients averaged by hand",
    "tp": "tensor parallel: attention heads and MLP split, results added up by all_reduce",
    "pp": "pipeline: stages that send and receive",
    "cp": "context parallel: keys and values go round a ring of send and receive",
    "ulysses": "context parallel: heads against sequence by all_to_all",
    "gather": "context parallel: keys and values joined by all_gather",
    "ep": "expert parallel: tokens exchanged by all_to_all",
}
JOBS = (*(f"{kind} {size}" for kind in KINDS for size in (2, 4)), "pp 2 tp 2 dp 2")
HEAD = """# Parallel jobs

What totals of a job are, kind by kind. Each job below runs `examples/by_hand.py`, a transformer of 4 blocks that is
made parallel with `torch.distributed` alone: no DeviceMesh, no DTensor, no wrapper says how. distprof infers the sizes
from what ranks hold (names and checksums of parameters) and exchange (in the forward pass of modules, and by messages).
Where two topologies explain the same facts it names none: totals are marked `not certain`, `--strict` fails, and a flag
(`--dp`, `--tp`, `--pp`, `--cp`, `--ep` of `run`, `merge`, `stats` and `comms`) settles it.

* **per GPU**: mean over ranks. **mp x**: the law, mp_size x per GPU. **once**: every parameter once, however many ranks
  hold it.
* **unsharded**: the same model counted on one rank by torch's FlopCounterMode, on the batches of all ranks that divide
  one replica: ranks that hold different experts each have a batch of their own.
* **stored**: what one replica of the model takes on all its ranks. **samples a step**: of the whole job; ranks that
  divide a model or a sequence work on the same samples, ranks with other experts do not.
* `mp x` params are more than the model where ranks hold replicas: norms under tp, all but experts under ep, everything
  under cp. FLOPs are those of the unsharded model wherever no work is done twice.

This page is made by `docs/parallelism.py` and checked by a test.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job and what was found about it."""

    job: str
    summary: dict[str, Any]
    unsharded: dict[str, int]


def recorded(jobs: Sequence[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Records each job in processes that are forked from this one."""
    import torch.distributed  # noqa: F401 (once, before the forks)

    import distprof

    sys.path.insert(0, str(EXAMPLES))
    from by_hand import main

    for job in jobs:
        run, words = folder / job.replace(" ", "-"), job.split()
        os.environ["DISTPROF_RUN_ID"] = run.name

        def rank(run: Path = run, words: list[str] = words) -> None:
            with distprof.record(run, steps=STEPS):
                main(words)

        fork_ranks(prod(map(int, words[1::2])), rank)
        yield job, run


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


def unsharded(job: str) -> dict[str, int]:
    """Counts the model of a job on one rank with torch's FlopCounterMode."""
    import by_hand
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    words = job.split()
    sizes = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    axes: Any = {"ep": Alone()} if "ep" in sizes else {}
    model = by_hand.Stage(axes)
    batch = torch.randn(by_hand.BATCH * sizes.get("ep", 1), by_hand.LENGTH, by_hand.WIDTH)
    with FlopCounterMode(display=False) as forward:
        out = model(batch)
    with FlopCounterMode(display=False) as backward:
        out.square().mean().backward()
    return {"params": sum(parameter.numel() for parameter in model.parameters()),
            "fwd_flops": forward.get_total_flops(), "bwd_flops": backward.get_total_flops()}


class Alone:
    """An axis of one rank."""

    size, place = 1, 0


def rows(jobs: Sequence[str] = JOBS) -> Iterator[Row]:
    """Runs the jobs and reads them."""
    from distprof.merge.commands.stats import stats

    with tempfile.TemporaryDirectory() as folder:
        for job, run in recorded(jobs, Path(folder)):
            yield Row(job=job, summary=json.loads(stats(run, as_json=True)), unsharded=unsharded(job))


def page(found: Sequence[Row]) -> str:
    """The page."""
    lines = ["| job | found | params: per GPU | mp x | once | unsharded | stored | forward FLOPs: per GPU | mp x | "
             "unsharded | backward: mp x | unsharded | samples a step |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
             *map(line, found)]
    kinds = [f"* **{kind}**: {what}." for kind, what in KINDS.items()]
    return HEAD + "\n".join([*kinds, "", *lines]) + "\n"


def line(row: Row) -> str:
    """Its line of the table."""
    summary, alone = row.summary, row.unsharded
    model, samples = summary["model"], summary["step"]["samples"]
    sizes = " x ".join(f"{axis} {size}" for axis, size in summary["topology"].items() if size > 1)
    shown = sizes if summary["topology_certain"] else f"**not certain**, taken for {sizes}"
    cells = [row.job, shown, summary["per_gpu"]["params"]["mean"], model["params"], model["unique_params"],
             alone["params"], model["stored_params"], summary["per_gpu"]["fwd_flops"]["mean"], model["fwd_flops"],
             alone["fwd_flops"], model["bwd_flops"], alone["bwd_flops"], _whole(samples)]
    return f"| {' | '.join(f'{cell:,}' if isinstance(cell, (int, float)) else cell for cell in cells)} |"


def _whole(number: float | None) -> int | str:
    return "unknown" if number is None else round(number)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.stdout.write(page(list(rows(sys.argv[1:] or JOBS))))
