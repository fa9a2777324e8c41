"""Parameters of a rank: as the model had them before FSDP version 1 flattened them, under every strategy, without any
of its collectives; which modules are routed experts, and which share of the tokens each of them sees.
"""

from __future__ import annotations

import json
import sys

import pytest
from torch import nn

from distprof.model.params import active_ratios
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


class Mixture(nn.Module):
    """Four routed experts, of which a token goes to two, and one that all tokens go to."""

    def __init__(self, shared: str = "shared_expert") -> None:
        super().__init__()
        self.top_k = 2
        self.gate = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)) for _ in range(4))
        self.add_module(shared, nn.Linear(8, 8))
        self.experts[0].add_module("shared", nn.Linear(8, 8))


def ratios(model: nn.Module) -> dict[str, float]:
    found = active_ratios(model)
    return {name: found[id(module)] for name, module in model.named_modules() if id(module) in found}


@pytest.mark.parametrize("shared", ["shared_expert", "shared_experts"])
def test_routed_experts_see_a_share_of_the_tokens_and_shared_ones_all(shared):
    routed = {"experts", *(f"experts.{number}{part}" for number in range(4) for part in ("", ".0", ".1"))}
    assert ratios(nn.Sequential(Mixture(shared))) == {f"0.{name}": 0.5 for name in routed}


def test_a_mixture_that_does_not_say_how_many_experts_a_token_goes_to_is_left_out():
    model = Mixture()
    del model.top_k
    assert ratios(model) == {}
