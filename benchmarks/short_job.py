"""Measures what recording adds to a short job (start, passes, files, end), compared with plain torchrun.

    python benchmarks/short_job.py [--ranks 2] [--repeat 7]

Processor time includes all processes of the job and the launcher. Both variants run in turns.
"""

from __future__ import annotations

import argparse
import sys

from measuring.benchmark import DISTPROF, Found, Option, Ratio, files, run
from measuring.tables import spread, table
from measuring.turns import COSTS, cells, cpu_s, in_turns

SCRIPT = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    model(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def measure(args: argparse.Namespace) -> Found:
    """Returns a table with a row per variant, and the difference."""
    with files(args) as folder:
        script = folder / "short.py"
        script.write_text(SCRIPT)
        flags = ["--nproc-per-node", str(args.ranks), str(script)]
        found = in_turns({
            "plain": [sys.executable, "-m", "torch.distributed.run", "--standalone", *flags],
            "recorded": [*DISTPROF, "run", "--no-merge", "--force", "--out", str(folder / "run"), *flags]}, args.repeat)
    added = [[getattr(more, what) - getattr(less, what)
              for more, less in zip(found["recorded"], found["plain"], strict=False)] for what in ("wall_s", "cpu_s")]
    rows = [[name, *cells(costs)] for name, costs in found.items()]
    rows.append(["added", *(spread(values, 2) for values in added), "-", "-"])
    return Found(text=[f"{args.ranks} ranks, 50 steps; all processes together:", table(("job", *COSTS), rows)],
                 ratios={"CPU / plain torchrun": Ratio(value=cpu_s(found["recorded"]) / cpu_s(found["plain"]))})


if __name__ == "__main__":
    run(measure, __doc__, ranks=Option(default=2, smallest=1), repeat=Option(default=7, smallest=1))
