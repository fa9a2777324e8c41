"""Communication of many kinds on two ranks, a group for each kind; rank 1 comes late to each by the given ms."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, late_s, num_steps = dist.get_rank(), float(sys.argv[1]) / 1e3, int(sys.argv[2])
torch.manual_seed(0)


def group(name: str) -> dist.ProcessGroup:
    return dist.new_group([0, 1], group_desc=name)


def net(norm: bool = False) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8) if norm else nn.ReLU(), nn.Linear(8, 8))


def ddp(name: str, norm: bool = False, **options) -> DistributedDataParallel:
    return DistributedDataParallel(net(norm), process_group=group(name), **options)


models = {
    "ddp": ddp("ddp"), "buckets": ddp("buckets", bucket_cap_mb=1e-5, gradient_as_bucket_view=True),
    "static": ddp("static", static_graph=True), "unused": ddp("unused", find_unused_parameters=True),
    "buffers": ddp("buffers", norm=True), "hooked": ddp("hooked"), "accumulated": ddp("accumulated"),
    "twice": ddp("twice"),
}
models["hooked"].register_comm_hook(models["hooked"].process_group, fp16_compress_hook)
meshes = [DeviceMesh.from_group(group(name), "cpu", mesh_dim_names=(name,)) for name in ("tp", "fsdp")]
models["tp"] = parallelize_module(net(), meshes[0], {"0": ColwiseParallel(), "2": RowwiseParallel()})
models["fsdp"] = fully_shard(net(), mesh=meshes[1])
groups = {name: group(name) for name in ("plain", "async", "functional", "pairs", "kinds", "unasked")}
optimizer = torch.optim.SGD([p for model in models.values() for p in model.parameters()], lr=1e-3, foreach=False)


def talk(name: str) -> None:
    data, among = torch.ones(16), groups[name]
    if name == "plain":
        dist.all_reduce(data, group=among)
    elif name == "async":
        work = dist.all_reduce(data, group=among, async_op=True)
        work.wait()
    elif name == "functional":
        all_reduce(data, "sum", among) + 1
    elif name == "pairs":
        dist.send(data, 0, among) if rank else dist.recv(data, 1, among)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, data, 1 - rank, among),
                                            dist.P2POp(dist.irecv, torch.ones(16), 1 - rank, among)]):
            work.wait()
    elif name == "kinds":
        kinds(data, among)
    else:  # nobody waits
        unasked.append(dist.all_reduce(data, group=among, async_op=True))


def kinds(data: torch.Tensor, among: dist.ProcessGroup) -> None:
    half = torch.ones(8)
    dist.monitored_barrier(among)
    dist.barrier(among)
    dist.reduce_scatter_tensor(half, data, group=among)
    dist.reduce_scatter_tensor(half, data, group=among, async_op=True).wait()
    dist.reduce_scatter(half, [half, half], group=among)
    dist.all_gather_into_tensor(torch.ones(32), data, group=among)
    dist.all_gather([torch.ones(16), torch.ones(16)], data, group=among)
    dist.broadcast(data, 0, group=among)
    dist.reduce(data, 0, group=among)
    dist.all_to_all_single(torch.ones(16), data, group=among)
    dist.scatter(half, None if rank else [half, half], 0, group=among)
    dist.gather(data, None if rank else [data, data.clone()], 0, group=among)
    dist.all_reduce(torch.eye(3).to_sparse(), group=among)
    with dist._coalescing_manager(among, async_ops=True) as together:
        dist.all_reduce(torch.ones(3), group=among)
        dist.all_reduce(torch.ones(5), group=among)
    together.wait()


unasked: list[dist.Work] = []
for _ in range(num_steps):
    for name in (*models, *groups):
        dist.barrier()
        time.sleep(rank * late_s)
        if name in groups:
            talk(name)
            continue
        if name == "accumulated":
            with models[name].no_sync():
                models[name](torch.ones(4, 8)).sum().backward()
        for _ in range(2 if name == "twice" else 1):
            models[name](torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
for work in unasked:
    work.wait()
dist.barrier()
time.sleep(0.3)  # torch may abort at exit while gloo frees its last work
dist.destroy_process_group()
