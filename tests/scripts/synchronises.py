"""Two ranks in which lines wait, each marked with what is to be found: `synchronises.py [PLAIN]`.

`# waits: OP` marks a line that waits, `# point: OP` one that would on a device. With PLAIN nothing does.
"""

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
        if not planted:
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
        return 2 * gradient / gradient.abs().max().item() if planted else 2 * gradient  # point: aten::item


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


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Gate())
    model = DistributedDataParallel(model) if planted else model
    optimizer = torch.optim.Adam(model.parameters())
    data = [torch.randn(8) for _ in range(64)]
    batches = DataLoader(data, batch_size=4, num_workers=1 if planted else 0, collate_fn=load if planted else None)
    for batch in batches:  # waits: DataLoader.__next__
        out = model(batch)
        loss = Doubled.apply(out).square().mean()
        loss.backward()  # waits: all_reduce of DDP
        optimizer.step()
        optimizer.zero_grad()
        if planted:
            wait_for_everything(loss, out)
    dist.destroy_process_group()


planted = sys.argv[1:] != ["plain"]
if __name__ == "__main__":
    main()
