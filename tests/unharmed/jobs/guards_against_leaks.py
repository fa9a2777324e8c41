"""Ranks that close each descriptor that they do not know, as a guard against leaks, and open files in the same places (https://github.com/Icinga/icinga2/issues/3943 closes so)."""
# recorded: any
# ranks: 2
import os
import stat
import time
from pathlib import Path

known = set(os.listdir("/proc/self/fd"))

import torch.distributed as dist
from small import digest, net, sgd, step

dist.init_process_group("gloo")
model, meant = net(), {}
for parameter in model.parameters():
    dist.all_reduce(parameter.data)
    parameter.data /= 2
known |= set(os.listdir("/proc/self/fd"))
optimizer = sgd(model)
rank, name = dist.get_rank(), "{}-{}"
for number in range(60):
    step(model, optimizer, number)
    time.sleep(0.01)
    if number in (1, 4):
        leaks = set(os.listdir("/proc/self/fd")) - known - {str(file) for file in meant}
        for leak in map(int, leaks):
            try:
                if stat.S_ISSOCK(os.fstat(leak).st_mode) or "eventpoll" in os.readlink(f"/proc/self/fd/{leak}"):
                    os.close(leak)
            except OSError:
                continue
        for one in range(8):
            file = os.open(name.format(rank, f"{number}-{one}"), os.O_CREAT | os.O_RDWR)
            meant[file] = name.format(rank, f"{number}-{one}")
            known.add(str(file))
    for file in meant:
        os.write(file, f"{number}\n".encode())
for file in meant:
    os.close(file)
print(rank, [Path(one).read_text().count("\n") for one in meant.values()], digest(model))
dist.barrier()
dist.destroy_process_group()
