"""A job that knows nothing of us: four ranks in a named mesh, each with torch.profiler and TensorBoard's handler."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import profile, tensorboard_trace_handler

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
with profile(on_trace_ready=tensorboard_trace_handler(sys.argv[1], use_gzip=dist.get_rank() % 2 == 0)):
    dist.all_reduce(torch.ones(8), group=mesh["tp"].get_group())
dist.destroy_process_group()
