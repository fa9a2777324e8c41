"""Activation checkpointing, re-entrant and not, with dropout that must fall the same again (https://github.com/pytorch/pytorch/issues/115255)."""
import torch
from small import batch, digest, sgd
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

torch.manual_seed(0)
blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh()) for _ in range(4)))
head = nn.Linear(8, 4)
both = nn.ModuleList([blocks, head])
optimizer = sgd(both)
packed = []
for number in range(9):
    samples, wanted = batch(number)
    samples.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda one: (packed.append(tuple(one.shape)), one)[1], lambda one: one):
        if number % 3 == 2:
            hidden = checkpoint_sequential(blocks, 2, samples, use_reentrant=False)
        else:
            hidden = checkpoint(blocks, samples, use_reentrant=bool(number % 3))
        loss = (head(hidden) - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(number, loss.item(), len(packed))
print(digest(both))
