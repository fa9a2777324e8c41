"""Two ranks in which lines wait, each marked with what is to be found: `synchronises.py [plain]`.

`# waits: OP` marks a line that waits in every second step, `# always: OP` one that waits in each, `# point: OP` one
that would wait on a device. With `plain` no line does.
"""

import multiprocessing
import queue
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = self.linear(x)
        if not now():
            return x
        if x.sum() > 1e9:  # point: aten::item
            raise ValueError
        return x * x[x > 0].mean()  # point: aten::nonzero


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient / gradient.abs().max().item() if now() else 2 * gradient  # point: aten::item


def late(where):
    time.sleep(0.05)
    where.put(torch.ones(8))


def load(batch):
    time.sleep(0.02)
    return torch.stack(batch)


def wait_for_everything(loss, out):
    dist.all_reduce(loss.detach().clone())  # waits: Work.wait
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    work.wait()  # waits: Work.wait
    dist.barrier()  # waits: Work.wait
    out.detach().cpu()  # point: Tensor.cpu
    torch.unique(out.detach())  # point: aten::_unique2
    results = queue.Queue()
    helper = threading.Thread(target=late, args=(results,))
    helper.start()  # waits: Thread.start
    results.get()  # waits: Queue.get
    slow = threading.Thread(target=time.sleep, args=(0.05,))
    slow.start()  # waits: Thread.start
    slow.join()  # waits: Thread.join
    lock = multiprocessing.Lock()
    lock.acquire()
    threading.Timer(0.05, lock.release).start()  # waits: Thread.start
    with lock:  # waits: Lock.__enter__
        lock = None


def now():
    return planted and step[0] % 2 == 0


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Gate())
    model = DistributedDataParallel(model) if planted else model
    optimizer = torch.optim.Adam(model.parameters())
    data = [torch.randn(8) for _ in range(64)]
    batches = DataLoader(data, batch_size=4, num_workers=1 if planted else 0, collate_fn=load if planted else None)
    for step[0], batch in enumerate(batches):  # always: DataLoader.__next__
        out = model(batch)
        loss = Doubled.apply(out).square().mean()
        loss.backward()  # always: all_reduce of DDP
        if now():
            wait_for_everything(loss, out)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


step = [0]
planted = sys.argv[1:] != ["plain"]
if __name__ == "__main__":
    main()
