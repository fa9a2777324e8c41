"""FSDP version 1: parameters as the model had them, under every strategy, without any of its collectives."""

from __future__ import annotations

import json
import sys

import pytest

from support import forked
from support.jobs import EXAMPLES, PATIENCE_S, clean_environ

COUNTED = """
import json, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore
sys.path.insert(0, sys.argv[1])
from train_ddp import Block, Transformer
from distprof.model.params import ParamCounter
from distprof.process.live_topology import detect

dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
def model():
    model = Transformer(vocabulary=50, width=32, heads=4, depth=2, length=16)
    model.head.weight = model.token.weight
    model.norm.requires_grad_(False)
    return model

pairs = dist.new_group([0, 1]), dist.new_group([1, 3])
found = []
for strategy in ShardingStrategy:
    for use_orig_params in (True, False):
        plain, wrapped = model(), model()
        if not use_orig_params:  # a flat parameter is trained or not as a whole
            plain.norm.requires_grad_(True), wrapped.norm.requires_grad_(True)
        group = pairs if "HYBRID" in strategy.name else None
        sharded = FullyShardedDataParallel(
            wrapped, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=strategy, process_group=group,
            use_orig_params=use_orig_params, device_id=torch.device("cpu"))
        topology = detect(rank=1, world_size=4)
        counters = [ParamCounter([root], topology) for root in (plain, sharded)]
        paths = [{name.replace("_fsdp_wrapped_module.", "").replace("_fsdp_wrapped_module", ""): module
                  for name, module in root.named_modules()} for root in (plain, sharded)]
        for path, module in paths[0].items():
            ours = paths[1][path]
            assert counters[0].own(module) == counters[1].own(ours), path
        numbers = [counter.below([root]) for counter, root in zip(counters, (plain, sharded))]
        for name in ("params", "trainable_params", "unique_params", "dtypes"):
            assert getattr(numbers[0], name) == getattr(numbers[1], name), (strategy, use_orig_params, name)
        found.append((strategy.name, topology.sizes, topology.basis, numbers[1].stored_params / numbers[1].params))
        del sharded, wrapped, counters, paths, ours, module
print(json.dumps(found))
"""


@pytest.mark.long
def test_every_strategy_counts_what_the_model_counts_alone():
    done = forked.run([sys.executable, "-c", COUNTED, EXAMPLES], capture_output=True, text=True, check=False,
                      timeout=PATIENCE_S, env=clean_environ())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 10
    for strategy, sizes, basis, part in found:
        assert basis == "wrapper"
        assert sizes == ({"dp_replicate": 2, "dp_shard": 2} if "HYBRID" in strategy else {"dp": 4})
        shards = 1 if strategy == "NO_SHARD" else 2 if "HYBRID" in strategy else 4
        assert part == pytest.approx(1 / shards, rel=0.02), (strategy, "shards are equal but for padding")
