"""A compiled model whose inputs change shape, with a line at which its graph ends: `recompiles.py OUT STEPS BACKEND`.

Each rank writes what torch itself counts of it to OUT/RANK.json: its counters, its times, and what its logger of
recompilations says.
"""

import json
import logging
import sys
from pathlib import Path

import torch
import torch._dynamo.utils as dynamo
import torch.distributed as dist
from torch import nn

SHAPES = {0: (4, 4, 6, 6, 4, 7, 7, 4), 1: (4, 4, 6, 6, 4, 6, 6, 4)}
"""Rows of the batches of each rank; what comes behind the recorded steps is compiled as well."""


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = self.linear(x)
        torch._dynamo.graph_break()  # breaks
        return x.relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.head = Head()

    def forward(self, x):
        return self.head(self.linear(x)).sum()


class Kept(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def main(out, num_steps, backend):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    kept = Kept()
    torch._logging.set_logs(recompiles=True)
    logger = logging.getLogger("torch._dynamo.guards.__recompiles")
    logger.handlers = [kept]
    logger.propagate = False
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    compiled = torch.compile(net, backend=backend, dynamic=False)
    rank = dist.get_rank()
    for number in range(num_steps):
        rows = SHAPES[rank][min(number, len(SHAPES[rank]) - 1)]
        optimizer.zero_grad()
        compiled(torch.ones(rows, 8)).backward()  # calls
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
    extra = torch.compile(lambda x: x * 2, backend="eager")
    extra(torch.ones(3))  # late
    Path(out, f"{rank}.json").write_text(json.dumps({
        "times_s": dynamo.compilation_time_metrics["_compile.compile_inner"],
        "backward": len(dynamo.compilation_time_metrics.get("backward._backward_impl", [])),
        "breaks": dict(dynamo.counters["graph_break"]), "recompiles": kept.lines,
        "spent_ns": dict(dynamo.cumulative_time_spent_ns),
        "noted_s": {name: sum(times) for name, times in dynamo.compilation_time_metrics.items()}}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
