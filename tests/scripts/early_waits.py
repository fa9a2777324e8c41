"""Data-parallel ranks that wait for a metric long before they look at it: `early_waits.py STEPS MS [late] [KIND ...]`.

In each step rank 1 sleeps MS ms, all ranks reduce a metric and wait for it, rank 0 sleeps MS ms, and the metric is
read. With `late`, ranks wait for it only then, so that they sleep at the same time. With other kinds (reduce, gather,
scatter, functional, message) they exchange it in these ways, one after the other.
"""

import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

num_steps, nap_s, is_late = int(sys.argv[1]), float(sys.argv[2]) / 1000, "late" in sys.argv[3:]
kinds = [one for one in sys.argv[3:] if one != "late"] or ["reduce"]
dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(32, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def begin(kind, metric):
    """Issues communication; returns functions that wait for it, and what to read then."""
    if kind == "reduce":
        return [dist.all_reduce(metric, async_op=True).wait], metric
    if kind == "gather":
        out = torch.empty(2)
        return [dist.all_gather_into_tensor(out, metric.reshape(1), async_op=True).wait], out
    if kind == "scatter":
        out = torch.empty(1)
        return [dist.reduce_scatter_tensor(out, metric.expand(2).contiguous(), async_op=True).wait], out
    if kind == "functional":
        out = functional.all_reduce(metric, "sum", dist.group.WORLD)
        return [lambda: functional.wait_tensor(out)], out
    out = torch.empty(())
    return [work.wait for work in (dist.isend(metric, 1 - rank), dist.irecv(out, 1 - rank))], out


for _ in range(num_steps):
    loss = model(torch.ones(4, 32)).square().mean()
    metric = loss.detach().clone()
    time.sleep(nap_s if rank == 1 else 0)
    begun = [begin(kind, metric.clone() if len(kinds) > 1 else metric) for kind in kinds]
    waits = [wait for several, _ in begun for wait in several]
    for wait in () if is_late else waits:
        wait()
    time.sleep(nap_s if rank == 0 else 0)
    for wait in waits if is_late else ():
        wait()
    for _, result in begun:
        result.sum().item() if result.ndim else result.item()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
