"""Topologies by live objects of torch, in processes of their own with a process group that sends nothing."""

from __future__ import annotations

import json
import sys

import pytest

from support import forked
from support.jobs import PATIENCE_S, clean_environ

SHARDED = """
import json, sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from distprof.model.params import ParamCounter
from distprof.process.live_topology import detect

names, shape, used = json.loads(sys.argv[1])
dist.init_process_group("fake", rank=3, world_size=8, store=FakeStore())
mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
fully_shard(model, mesh=mesh[tuple(used)] if used else mesh)
found = detect(rank=3, world_size=8)
params = ParamCounter([model], found).below([model])
print(json.dumps([found.sizes, found.coordinates, found.basis, params.params, params.stored_params]))
"""


@pytest.mark.long
@pytest.mark.parametrize(("names", "shape", "used", "sizes", "coordinates", "shards"), [
    (["dp_replicate", "dp_shard"], (4, 2), None, {"dp_replicate": 4, "dp_shard": 2}, {
        "dp_replicate": 1, "dp_shard": 1}, 2),
    (["dp_replicate", "dp_shard", "tp"], (2, 2, 2), ["dp_replicate", "dp_shard"], {
        "dp_replicate": 2, "dp_shard": 2, "tp": 2}, {"dp_replicate": 0, "dp_shard": 1, "tp": 1}, 2),
    (None, (8,), None, {"dp": 8}, {"dp": 3}, 8)])
def test_fsdp2_on_a_mesh(names, shape, used, sizes, coordinates, shards):
    done = forked.run([sys.executable, "-c", SHARDED, json.dumps([names, shape, used])], capture_output=True,
                      text=True, timeout=PATIENCE_S, env=clean_environ(), check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found[:3] == [sizes, coordinates, "mesh"]
    whole, widths = 8 * 8 + 8 + 8 * 4 + 4, ((8, 8), (8, 1), (4, 8), (4, 1))
    place = coordinates.get("dp_shard", coordinates.get("dp"))
    stored = sum(len(range(rows)[place * -(-rows // shards):(place + 1) * -(-rows // shards)]) * columns
                 for rows, columns in widths)
    assert found[3:] == [whole, stored]


BEING_MADE = """
import json
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.pipelining.stage import PipelineStage
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from distprof.process.live_topology import detect

dist.init_process_group("fake", rank=3, world_size=8, store=FakeStore())
begun = [kind.__new__(kind) for kind in (DistributedDataParallel, FullyShardedDataParallel, DeviceMesh, PipelineStage)]
for each in begun:
    each.is_begun = True  # the first attribute makes it known to the garbage collector
found = detect(rank=3, world_size=8)
print(json.dumps([found.sizes, found.coordinates, found.basis]))
"""


@pytest.mark.long
def test_wrappers_and_meshes_that_are_still_being_made_are_not_asked():
    done = forked.run([sys.executable, "-c", BEING_MADE], capture_output=True, text=True, timeout=PATIENCE_S,
                      env=clean_environ(), check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"dp": 8}, {"dp": 3}, "assumed"]
