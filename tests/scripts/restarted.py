"""Fails late in its first attempt, then succeeds; its ranks do not talk (gloo's ports may be stale on restart)."""

import os
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if first and step == 2:
        sys.exit(1)
