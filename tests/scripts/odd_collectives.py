"""Communication of rarer kinds on two ranks: uneven, empty, of one rank, coalesced, blocking, from anywhere."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
alone = [dist.new_group([one], group_desc="alone") for one in (0, 1)][rank]
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    mine, theirs = ((3, 1), (3, 2)) if rank == 0 else ((2, 2), (1, 2))
    dist.all_to_all_single(torch.zeros(sum(theirs), 5), torch.ones(sum(mine), 5), list(theirs), list(mine))
    dist.all_to_all_single(torch.zeros(4, dtype=torch.int32), torch.ones(4, dtype=torch.int32))
    try:
        dist.all_to_all([torch.zeros(3), torch.zeros(3)], [torch.ones(3), torch.ones(3)])
    except RuntimeError:  # gloo of torch 2.8 exchanges no lists
        dist.all_to_all_single(torch.zeros(6), torch.ones(6))
    dist.all_to_all_single(torch.zeros(0, 5), torch.ones(0, 5), [0, 0], [0, 0])
    dist.all_reduce(torch.zeros(0))
    dist.all_reduce(torch.zeros(6), group=alone)
    dist.broadcast(torch.zeros(3), src=rank, group=alone)
    dist.scatter(torch.zeros(2), [torch.ones(2)] * 2 if rank == 0 else None, src=0)
    dist.gather(torch.ones(2), [torch.zeros(2)] * 2 if rank == 0 else None, dst=0)
    dist.reduce_scatter(torch.zeros(7), [torch.ones(7)] * 2)
    functional.wait_tensor(functional.reduce_scatter_tensor_coalesced(
        [torch.ones(4), torch.ones(6)], "sum", [0, 0], dist.group.WORLD)[1])
    dist.all_reduce(torch.eye(3).to_sparse())
    dist.monitored_barrier()
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(12)]
    for work in works:
        work.wait()
    if rank == 0:
        dist.send(torch.zeros(9), dst=1, tag=7)
    else:
        dist.recv(torch.zeros(9), tag=7)
    first, second = torch.zeros(11), torch.zeros(11)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, first, 1 - rank, tag=1),
                                        dist.P2POp(dist.irecv, second, 1 - rank, tag=1)]):
        work.wait()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
