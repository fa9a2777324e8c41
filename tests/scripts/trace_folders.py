"""Two ranks that leave traces as accelerate, torchtitan and Megatron-LM write them: `trace_folders.py FOLDER`."""

import importlib.util
import sys
import types
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import ProfileKwargs
from torch import nn

from distprof.integrations.accelerate import trace_handler
from distprof.integrations.torchtitan import trace_post_processor

folder = Path(sys.argv[1])
accelerator = Accelerator(cpu=True)
rank = dist.get_rank()
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)


def step() -> None:
    accelerator.backward(model(torch.ones(2, 8)).sum())
    optimizer.step()
    optimizer.zero_grad()


def accelerate_s_own() -> None:
    with accelerator.profile(ProfileKwargs(activities=["cpu"], output_trace_dir=str(folder / "accelerate"))):
        step()


def our_handler() -> None:
    with accelerator.profile(ProfileKwargs(activities=["cpu"], on_trace_ready=trace_handler(folder / "handler"))):
        step()
    scheduled = ProfileKwargs(activities=["cpu"], on_trace_ready=trace_handler(folder / "scheduled"),
                              schedule_option={"wait": 0, "warmup": 1, "active": 2, "repeat": 2})
    with accelerator.profile(scheduled) as profiler:
        for _ in range(6):
            step()
            profiler.step()


def torchtitan_s() -> None:
    titan = types.ModuleType("torchtitan")  # its __init__ imports kernels, which need a GPU's triton
    titan.__path__ = importlib.util.find_spec("torchtitan").submodule_search_locations
    sys.modules["torchtitan"] = titan
    from torchtitan.config import Profiling
    from torchtitan.distributed import ParallelDims
    from torchtitan.tools.profiling import maybe_enable_profiling

    dims = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=2, pp=1, ep=1, etp=1, world_size=2)
    config = Profiling(enable_profiling=True, profile_freq=3, profiler_active=1, profiler_warmup=1)
    profile = torch.profiler.profile  # without a GPU it is given None as one of the activities, which it refuses
    torch.profiler.profile = lambda **given: profile(**{**given, "activities": [torch.profiler.ProfilerActivity.CPU]})
    with maybe_enable_profiling(config, base_folder=str(folder / "torchtitan")) as profiler:
        for _ in range(6):
            step()
            profiler.step()
    torch.profiler.profile = profile
    # as its newer versions call what their configuration names
    for path in (folder / "torchtitan").rglob(f"rank{rank}_trace.json"):
        trace_post_processor(str(path))
    del dims


def megatron_s() -> None:
    """What megatron/training/training.py does under --use-pytorch-profiler and --pytorch-profiler-collect-chakra."""
    def trace_handler(profiler):
        (folder / "megatron" / "torch_profile").mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / "megatron" / "torch_profile" / f"rank-{rank}.json.gz"))

    (folder / "megatron" / "chakra").mkdir(parents=True, exist_ok=True)
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(folder / "megatron" / "chakra" / f"rank-{rank}.json.gz"))
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
                                on_trace_ready=trace_handler, execution_trace_observer=observer) as profiler:
        for _ in range(3):
            step()
            profiler.step()


for kind in (accelerate_s_own, our_handler, torchtitan_s, megatron_s):
    kind()
accelerator.end_training()
