"""A loop of accelerate, which accumulates 2 batches of 4 a step: `accelerated.py [fork]`.

fork: the script starts its two ranks itself.
"""

import sys

import torch
from accelerate import Accelerator, debug_launcher
from torch import nn
from torch.utils.data import DataLoader

WIDTH = 4


def train():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(WIDTH, WIDTH)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader([torch.ones(WIDTH)] * 96, batch_size=4))
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            optimizer.step()
            optimizer.zero_grad()
    accelerator.end_training()


if __name__ == "__main__":
    debug_launcher(train, num_processes=2) if sys.argv[1:] == ["fork"] else train()
