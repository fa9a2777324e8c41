"""Two ranks that call each kind of communication in each step.

Under `distprof run` as it is; with `observed_kinds.py FOLDER PORT FIRST LAST` they start themselves, and write an
execution trace of three steps and a timeline of some.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function


def communicate(rank: int, alone: dist.ProcessGroup) -> None:
    one, two = torch.ones(6), [torch.ones(6), torch.ones(6)]
    dist.all_reduce(one)
    dist.all_reduce(one, group=alone)
    dist.broadcast(one, src=1)
    dist.reduce(one, dst=0)
    dist.reduce_scatter(torch.zeros(6), two)
    dist.all_gather(two, one)
    dist.all_to_all_single(torch.zeros(6), one)
    dist.gather(one, two if rank == 0 else None, dst=0)
    if rank == 0:
        dist.send(one, dst=1, tag=3)
        dist.recv(one, src=1)
    else:
        dist.recv(one, src=0, tag=3)
        dist.send(one, dst=0)
    dist.barrier()


def steps(number: int):
    """Steps with some computing in each."""
    torch.set_num_threads(1)
    rank = dist.get_rank()
    alone = [dist.new_group([one]) for one in (0, 1)][rank]
    weights = torch.ones(8, 8, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    for step in range(number):
        yield step
        with record_function(f"step_{step}"):
            (weights @ weights).relu().sum().backward()
            communicate(rank, alone)
            optimizer.step()


def observed(rank: int, folder: str, port: str, first: int, last: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    observer = ExecutionTraceObserver().register_callback(f"{folder}/et_rank{rank}.json")
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
    observer.start()
    for step in steps(3):
        if step == first:
            profiler.start()
        if step == last + 1:
            profiler.stop()
    if last == step:
        profiler.stop()
    observer.stop()
    observer.unregister_callback()
    profiler.export_chrome_trace(f"{folder}/rank{rank}.json")
    dist.destroy_process_group()


if __name__ == "__main__" and len(sys.argv) > 1:
    mp.start_processes(observed, args=(*sys.argv[1:3], *map(int, sys.argv[3:5])), nprocs=2, start_method="fork")
elif __name__ == "__main__":
    dist.init_process_group("gloo")
    for _ in steps(16):
        pass
    dist.destroy_process_group()
