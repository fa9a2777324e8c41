"""Trains with compiled code that must not be compiled again, beside a teacher that was compiled ahead of time.

`compiled_strictly.py stance|config` says so with a stance, or in the compiler's settings, once two steps have run.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

torch.manual_seed(0)
dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
compiled = torch.compile(nn.parallel.DistributedDataParallel(model), backend="aot_eager")
teacher = nn.Linear(8, 4).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(6, 8)
with torch.no_grad():
    ahead = torch.compile(teacher, fullgraph=True, backend="eager").forward.aot_compile(((x,), {}))
for step in range(30):
    if step == 2 and sys.argv[1] == "stance":
        torch.compiler.set_stance("fail_on_recompile")
    if step == 2 and sys.argv[1] == "config":
        torch._dynamo.config.error_on_recompile = True
    with torch.no_grad():
        wanted = ahead(x)
    loss = (compiled(x) - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
stance = torch._dynamo.eval_frame._stance.stance
print(f"{stance} {sum(float(one.double().sum()) for one in model.parameters())!r}", flush=True)
dist.destroy_process_group()
