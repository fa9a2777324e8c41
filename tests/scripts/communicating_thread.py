"""Two groups of the same ranks: the main thread communicates in one, another thread in the other."""

import queue
import threading

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
other = dist.new_group([0, 1])
model, inputs = nn.Linear(8, 8), torch.randn(4, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
asked, done = queue.Queue(), queue.Queue()


def communicate() -> None:
    """Reduces what it is given."""
    while (tensor := asked.get()) is not None:
        dist.all_reduce(tensor, group=other)
        done.put(1)


thread = threading.Thread(target=communicate)
thread.start()
for _ in range(9):
    model(inputs).sum().backward()
    if dist.get_rank() == 0:
        dist.broadcast(torch.ones(50), 0)
    asked.put(torch.ones(1000))
    if dist.get_rank() == 1:
        dist.broadcast(torch.ones(50), 0)
    done.get()
    optimizer.step()
    optimizer.zero_grad()
asked.put(None)
thread.join()
dist.barrier()
dist.destroy_process_group()
