"""Prints the cost of torch.profiler's own table for a job, as JSON: python key_averages.py STEPS

The job is that of traced_job.py on one rank, with shapes; the table itself is not printed.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.profiler import ProfilerActivity, profile
from traced_job import Job


def main(steps: str) -> None:
    """Traces this many steps, then lets the profiler parse its events and create the table."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    job = Job()
    job._step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(int(steps)):
            job._step()
            profiler.step()
    before, cpu = time.perf_counter(), time.process_time()
    table = profiler.key_averages().table(sort_by="self_cpu_time_total")
    print(json.dumps({
        "table_s": time.perf_counter() - before, "cpu_s": time.process_time() - cpu, "events": len(profiler.events()),
        "rows": len(table.splitlines()), "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
