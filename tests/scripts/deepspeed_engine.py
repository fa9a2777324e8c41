"""A job of DeepSpeed's engine, which counts its own collectives: `deepspeed_engine.py FOLDER STAGE`."""

import json
import sys
from pathlib import Path

import deepspeed
import deepspeed.comm
import torch
from torch import nn

WIDTH, STEPS = 16, 7
words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]  # the deepspeed launcher adds it
folder, stage = Path(words[0]), int(words[1])
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo will do, and compiling it takes minutes
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
    config={"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {
        "stage": stage}, "zero_allow_untested_optimizer": True, "comms_logger": {"enabled": True, "prof_all": True}})
deepspeed.comm.comm.comms_logger.reset_data()  # of what initialize() sent
for _ in range(2 * STEPS):
    engine.backward(engine(torch.ones(4, WIDTH)).square().mean())
    engine.step()
counts = {name: {size: found[0] for size, found in sizes.items()}
          for name, sizes in deepspeed.comm.comm.comms_logger.get_raw_data().items()}
(folder / f"comms{torch.distributed.get_rank()}.json").write_text(json.dumps({"steps": STEPS, "counts": counts}))
torch.distributed.destroy_process_group()
