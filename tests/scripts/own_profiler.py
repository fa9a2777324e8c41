"""A job that profiles itself around, between and inside of its steps: `own_profiler.py HOW [option=1 ...]`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import profile, record_function, schedule

how, options = sys.argv[1], {word.partition("=")[0]: True for word in sys.argv[2:]}
NUM_STEPS = 16


def make(**more):
    return profile(**options, **more)


def step():
    loss = model(torch.randn(2, 4)).sum()
    loss.backward()
    optimizer.step()


def scheduled():
    """Three cycles of a schedule, its step() behind each iteration."""
    with make(schedule=schedule(wait=2, warmup=1, active=2, repeat=3)) as theirs:
        for _ in range(NUM_STEPS):
            step()
            theirs.step()


def in_slice():
    """It begins and ends inside of slices that began before it, and is over before each ends."""
    for number in range(NUM_STEPS):
        with record_function("iteration"):
            step()
            if number % 4 == 2:
                with make():
                    step()


def across_slices():
    """It begins inside of one slice and ends inside of another."""
    theirs = make()
    with record_function("training"):
        for number in range(NUM_STEPS):
            with record_function("iteration"):
                step()
                if number == 7:
                    theirs.start()
            if number == 9:
                theirs.stop()


def in_optimizer():
    """It begins and ends in a hook of the optimizer."""
    theirs, steps = make(), []

    def hook(*_):
        steps.append(0)
        if len(steps) == 7:
            theirs.start()
        elif len(steps) == 9:
            theirs.stop()

    handle = register_optimizer_step_post_hook(hook)
    for _ in range(NUM_STEPS):
        step()
    handle.remove()


def at_once():
    """Sessions of a few operators in every step."""
    for number in range(NUM_STEPS):
        with record_function("iteration"):
            step()
            if number % 2:
                with make() as theirs:
                    torch.ones(4) + 1
                theirs.key_averages()


def later():
    """It begins when training is half over."""
    for _ in range(NUM_STEPS // 2):
        step()
    with make():
        for _ in range(NUM_STEPS // 2):
            step()


def earlier():
    """It ends when training is half over, in a slice that goes on."""
    theirs = make()
    theirs.start()
    with record_function("training"):
        for number in range(NUM_STEPS):
            step()
            if number == 3:
                theirs.stop()


if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
if dist.is_initialized():
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
globals()[how]()
if dist.is_initialized():
    dist.destroy_process_group()
