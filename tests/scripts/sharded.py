"""FSDP2 on every block and the whole, a block checkpointed: `sharded.py`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from train_ddp import Transformer

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Transformer(vocabulary=50, width=32, heads=4, depth=2, length=16)
model.layers[1] = checkpoint_wrapper(model.layers[1])
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    tokens = torch.randint(0, 50, (3, 17))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
