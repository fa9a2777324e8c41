"""Each kind of communication once a step, in a known order, on two groups of four ranks; FSDP2 beside it."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
pairs = mesh["tp"].get_group()


class Talks(nn.Module):
    """Communicates inside its forward call."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        x = x * self.weight
        dist.all_reduce(x.detach(), group=pairs)
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.talks = Talks()

    def forward(self, x):
        return self.talks(x)


model = Model()
sharded = fully_shard(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), mesh=mesh["dp"])
optimizer = torch.optim.SGD([*model.parameters(), *sharded.parameters()], lr=0.1)
for _ in range(4):
    model(torch.ones(3, 4)).sum().backward()
    dist.broadcast(torch.zeros(10, dtype=torch.float64), src=2)
    work = dist.all_reduce(torch.ones(5), async_op=True)
    work.wait()
    dist.all_gather_into_tensor(torch.zeros(4), torch.ones(2), group=pairs)
    dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(4), group=pairs)
    dist.all_to_all_single(torch.zeros(8, dtype=torch.int32), torch.ones(8, dtype=torch.int32))
    functional.wait_tensor(functional.all_reduce(torch.ones(7), "sum", pairs))
    if rank == 0:
        dist.send(torch.zeros(3), dst=1)
    if rank == 1:
        dist.recv(torch.zeros(3), src=0)
    dist.barrier()
    sharded(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
