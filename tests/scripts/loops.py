"""Training loops of several kinds on DDP: `loops.py KIND [ITERATIONS] [LATE_MS]`.

Kinds: gan (5 steps of a critic, 1 of a generator), alternating (two optimizers, step and step), together (two
optimizers, one backward), scaler (gradients overflow in every third iteration), in_backward (an optimizer for each
parameter, which steps while backward runs), validation (every third iteration, on rank 0 alone), average (an average of
weights is called without gradient), twice (two forward calls of the same batch), irregular (the second optimizer steps
now and then), unused (an optimizer that never steps), lbfgs (a closure; on rank 1 the second layer sleeps LATE_MS),
closure (SGD with a closure), rollouts (four calls without gradient in front of each third iteration), plain.

In the folder WATCH each rank writes for every iteration when it began and ended (ns since the epoch), and what
torch.utils.flop_counter says of its forward and backward if COUNT is set.
"""

import copy
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

kind = sys.argv[1]
iterations = int(sys.argv[2]) if len(sys.argv) > 2 else 20
late_s = float(sys.argv[3]) / 1000 if len(sys.argv) > 3 else 0.0
WIDTH, BATCH = 16, 6
flops = {"forward": 0, "backward": 0, "evaluation": 0}
counting = "COUNT" in os.environ


class Net(nn.Module):
    def __init__(self, *, slow: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.slow = slow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        if self.slow and rank == 1:
            time.sleep(late_s)
        return self.second(x)


class Critic(Net):
    pass


class Generator(Net):
    pass


def counted(phase: str, call):
    if not counting:
        return call()
    with FlopCounterMode(display=False) as counter:
        result = call()
    flops[phase] += counter.get_total_flops()
    return result


def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return counted("forward", lambda: model(x))


def backward(loss: torch.Tensor) -> None:
    counted("backward", loss.backward)


def evaluate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return counted("evaluation", lambda: model(x))


def constant(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Without gradient in every iteration."""
    with torch.no_grad():
        return run(model, x)


def batch() -> torch.Tensor:
    return torch.randn(BATCH, WIDTH)


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([one for module in modules for one in module.parameters()], lr=1e-3)


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    backward(loss)
    optimizer.step()


def critic_step() -> None:
    fake = constant(generator, batch())
    descend(critics, run(critic, batch()).mean() - run(critic, fake).mean())


def gan(_: int) -> None:
    for _ in range(5):
        critic_step()
    descend(generators, -run(critic, run(generator, batch())).mean())


def alternating(_: int) -> None:
    descend(critics, run(critic, batch()).mean())
    descend(generators, run(generator, batch()).mean())


def together(_: int) -> None:
    x = batch()
    backward(run(critic, x).mean() + run(generator, x).mean())
    critics.step()
    generators.step()


def scaled(number: int) -> None:
    optimizer.zero_grad()
    loss = run(model, batch()).mean() * (float("inf") if number % 3 == 1 else 1)
    backward(scaler.scale(loss))
    scaler.step(optimizer)
    scaler.update()


def irregular(_: int) -> None:
    descend(critics, run(critic, batch()).mean())
    if torch.rand(1, generator=same) < 0.3:
        descend(generators, run(generator, batch()).mean())


def validation(number: int) -> None:
    descend(optimizer, run(model, batch()).mean())
    if number % 3 == 2 and rank == 0:
        model.module.eval()
        for _ in range(4):
            evaluate(model.module, batch())
        model.module.train()


def rollouts(number: int) -> None:
    for _ in range(4 if number % 3 == 0 else 0):
        evaluate(model, batch())
    descend(optimizer, run(model, batch()).mean())


def average(_: int) -> None:
    x = batch()
    constant(averaged, x)
    descend(optimizer, run(model, x).mean())


def twice(_: int) -> None:
    x = batch()
    descend(optimizer, run(model, x).mean() + run(model, x).square().mean())


def plain(_: int) -> None:
    descend(optimizer, run(model, batch()).mean())


def in_backward(_: int) -> None:
    backward(run(model, batch()).mean())


def with_closure(_: int) -> None:
    x = batch()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = run(model, x).square().mean()
        backward(loss)
        return loss

    optimizer.step(closure)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
same = torch.Generator().manual_seed(1)
distributed = DistributedDataParallel if kind != "in_backward" else lambda module: module
model = distributed(Net(slow=kind == "lbfgs"))
critic, generator = distributed(Critic()), distributed(Generator())
critics, generators = sgd(critic), sgd(generator)
optimizer = sgd(model)
if kind in ("gan", "alternating", "together", "irregular"):
    del optimizer
elif kind != "unused":
    del critics, generators
if kind == "unused":
    del generators
if kind == "lbfgs":
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-2, max_iter=3, line_search_fn=None, tolerance_grad=0,
                                  tolerance_change=0)
averaged = copy.deepcopy(model.module) if kind == "average" else None
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
if kind == "in_backward":
    del optimizer
    stepping = {parameter: torch.optim.SGD([parameter], lr=1e-3) for parameter in model.parameters()}
    for parameter, own in stepping.items():
        parameter.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
iterate = {"gan": gan, "alternating": alternating, "together": together, "scaler": scaled, "irregular": irregular,
           "validation": validation, "average": average, "twice": twice, "in_backward": in_backward, "unused": plain,
           "lbfgs": with_closure, "closure": with_closure, "rollouts": rollouts, "plain": plain}[kind]
watched = []
for number in range(iterations):
    before, began = dict(flops), time.time_ns()
    iterate(number)
    watched.append([began, time.time_ns(), *(flops[phase] - before[phase] for phase in flops)])
if "WATCH" in os.environ:
    Path(os.environ["WATCH"], f"loop{rank}.json").write_text(json.dumps(watched))
dist.destroy_process_group()
