"""FSDP (version 1) on every block and the whole, two layers tied: `fsdp1.py STRATEGY USE_ORIG_PARAMS`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from train_ddp import Block, Transformer

strategy, use_orig_params = ShardingStrategy[sys.argv[1]], sys.argv[2] == "True"
dist.init_process_group("gloo")
torch.manual_seed(0)
model = Transformer(vocabulary=50, width=32, heads=4, depth=2, length=16)
model.head.weight = model.token.weight
groups = None
if "HYBRID" in strategy.name:
    half = dist.get_world_size() // 2
    within = [dist.new_group([*range(half)]), dist.new_group([*range(half, 2 * half)])]
    across = [dist.new_group([one, one + half]) for one in range(half)]
    groups = within[dist.get_rank() // half], across[dist.get_rank() % half]
model = FullyShardedDataParallel(
    model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=strategy, use_orig_params=use_orig_params,
    device_id=torch.device("cpu"), process_group=groups)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    tokens = torch.randint(0, 50, (3, 17))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
