"""Trains on and on, one step in a tenth of a second; `terminated.py MARK` writes MARK when step 2 is done."""

import sys
import time
from pathlib import Path

import torch
from torch import nn

from distprof.recording import termination

termination.GRACE_S = 25.0  # on a busy machine; torchrun waits for 30
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9999):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.1)
    if step == 2:
        Path(sys.argv[1]).touch()
