"""Training jobs of which something untrue is easily said: `odd_loops.py KIND`.

Kinds: uneven (local SGD: rank 1 has 8 batches, rank 0 12, and both average every fourth), raises (likewise, and rank 1
raises before it averages for the second time), join (DDP's Join, with fewer batches on rank 0), metric
(the module itself joins the counts of its classes over all ranks, to look at them), curriculum (one process
with two models, whose optimizers step in no pattern), folds (a fresh model every fifth iteration, which is then
dropped), grows (a layer more from the fifth iteration on), threads (two train a model each, one of them a smaller one
and half as often), pool (each iteration on one of two threads, in turn).
"""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Semaphore, Thread

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

kind = sys.argv[1]
WIDTH, BATCH = 16, 4


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


def iteration(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(BATCH, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def steps(model: nn.Module, number: int):
    """So many iterations, with the number of each."""
    optimizer = sgd(model)
    for index in range(number):
        iteration(model, optimizer)
        yield index


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def local_sgd(rank: int, *, raises: bool = False) -> None:
    model = net()
    for index in steps(model, 8 if rank else 12):
        if index % 4 == 3 and index < 8:
            if raises and rank and index > 4:
                raise RuntimeError("no more data")
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= 2


def join(rank: int) -> None:
    model = DistributedDataParallel(net())
    with Join([model]):
        for _ in steps(model, 18 if rank else 7):
            pass


def curriculum() -> None:
    models = [(model, sgd(model)) for model in (net(), net())]
    drawn = random.Random(2)
    for _ in range(30):
        iteration(*drawn.choice(models))


def folds() -> None:
    for _ in range(3):
        for _ in steps(net(), 5):
            pass


def grows() -> None:
    model = net()
    optimizer = sgd(model)
    for index in range(14):
        if index == 4:
            model.append(nn.Linear(WIDTH, WIDTH))
            optimizer.add_param_group({"params": model[-1].parameters()})
        iteration(model, optimizer)


def threads() -> None:
    allowed, done = Semaphore(0), Semaphore(0)  # on a busy machine one would be through before the other begins

    def often() -> None:
        for index in steps(net(), 60):
            if index % 2:
                allowed.release()
                done.acquire()

    def seldom() -> None:
        model = nn.Linear(WIDTH, WIDTH)
        optimizer = sgd(model)
        for _ in range(30):
            allowed.acquire()
            iteration(model, optimizer)
            done.release()

    both = [Thread(target=often), Thread(target=seldom)]
    for one in both:
        one.start()
    for one in both:
        one.join()


def pool() -> None:
    model = net()
    optimizer = sgd(model)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for _ in range(20):
            for executor in (one, other, one):
                executor.submit(iteration, model, optimizer).result()


ALONE = {"curriculum": curriculum, "folds": folds, "grows": grows, "threads": threads, "pool": pool}


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.net(x)
        counts = result.detach().argmax(-1).bincount(minlength=WIDTH)
        dist.all_reduce(counts)
        with torch.no_grad():
            dist.all_gather([torch.empty(2) for _ in range(2)], result.mean(0)[:2].clone())
        return result


def metric(rank: int) -> None:
    for _ in steps(DistributedDataParallel(Counting()), 12):
        pass


OF_RANKS = {"uneven": local_sgd, "raises": partial(local_sgd, raises=True), "join": join, "metric": metric}


def of_ranks() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    OF_RANKS[kind](dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ALONE.get(kind, of_ranks)()
