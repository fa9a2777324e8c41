"""Two pipeline stages of different size by hand-written send and receive; no mesh that says so."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
first = dist.get_rank() == 0
stage = nn.Sequential(nn.Linear(6, 10)) if first else nn.Sequential(nn.Linear(10, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
for _ in range(4):
    if first:
        out = stage(torch.randn(3, 6))
        dist.send(out.detach(), dst=1)
        gradient = torch.empty(3, 10)
        dist.recv(gradient, src=1)
        out.backward(gradient)
    else:
        received = torch.empty(3, 10)
        dist.recv(received, src=0)
        received.requires_grad_()
        stage(received).square().sum().backward()
        dist.send(received.grad, dst=0)
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
