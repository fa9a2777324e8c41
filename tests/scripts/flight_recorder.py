"""Three ranks of which rank 1 does not enter a collective; each dumps its flight recorder: `flight_recorder.py FOLDER`.

Rank 2 leaves JSON, the others the pickles that torch writes when its watchdog fires.
"""

import os
import pickle
import sys
import time
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "100"

import torch
import torch.distributed as dist


def load_batch() -> None:
    dist.all_reduce(torch.ones(3))


folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1], group_desc="pair")
load_batch()
if rank < 2:
    dist.broadcast(torch.ones(7), src=0, group=pair)
c10d = torch._C._distributed_c10d
while not all(entry["retired"] for entry in pickle.loads(c10d._dump_fr_trace(True, False, False))["entries"]):
    time.sleep(0.05)  # gloo marks what is over a little later
work = dist.all_reduce(torch.ones(5), async_op=True) if rank != 1 else None
store = dist.distributed_c10d._get_default_store()
if rank == 2:
    (folder / f"nccl_trace_rank_{rank}").write_bytes(c10d._dump_fr_trace_json())
else:
    (folder / f"nccl_trace_rank_{rank}").write_bytes(c10d._dump_fr_trace(True, True, False))
store.set(f"dumped{rank}", "")
store.wait([f"dumped{other}" for other in range(3)])
if rank == 1:
    dist.all_reduce(torch.ones(5))
else:
    work.wait()
dist.destroy_process_group()
