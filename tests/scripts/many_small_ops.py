"""Many modules and operators a step, all of them small; says how far the memory of the process grew."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import distprof


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) << 10


class Repeated(nn.Module):
    def __init__(self, times: int):
        super().__init__()
        self.times, self.layers = times, nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))

    def forward(self, x):
        with torch.no_grad():
            for _ in range(self.times):
                y = self.layers(x)
        return self.layers(x) + y


model = Repeated(int(sys.argv[2]))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with distprof.record(sys.argv[1], steps=f"wait=2,count=0,time=0,trace=0,arrivals=0,memory={sys.argv[3]}"):
    for step in range(int(sys.argv[3]) + 4):
        if step == 2:
            before = status("VmHWM")
        optimizer.zero_grad()
        model(torch.randn(2, 4)).pow(2).mean().backward()
        optimizer.step()
print("steps", step + 1, "grew", status("VmHWM") - before)
