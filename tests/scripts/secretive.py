"""A job that is given secrets, and whose ranks end with an exception that names one and a URL with a password."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(3, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
token, url = sys.argv[sys.argv.index("--hf-token") + 1], sys.argv[-1]
raise RuntimeError(f"cannot log in to {url} with {token}, said the TCPStore")
