"""Two processes that each record an execution trace and a timeline of their own: `two_observers.py FOLDER`."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function


def work(rank: int, world_size: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 1), nn.Sigmoid()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    observer = ExecutionTraceObserver().register_callback(f"{folder}/demo_et_r{rank}.json")
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer)
    profiler.start()
    for epoch in range(3):
        with record_function(f"epoch_{epoch}"):
            loss = nn.functional.mse_loss(model(torch.randn(16, 10)), torch.randn(16, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    profiler.stop()
    observer.unregister_callback()  # writes the end
    profiler.export_chrome_trace(f"{folder}/demo_trace_r{rank}.json")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(work, args=(2, sys.argv[1]), nprocs=2, start_method="fork")
