"""A model with as many layers as large models have, all of them equal."""

from __future__ import annotations

import torch
from torch import nn

DEPTH = 32


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Stack(nn.Module):
    """As many equal layers as a LLaMA has, in a ModuleList that is never called itself."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__()
        self.token = nn.Embedding(100, 8)
        self.layers = nn.ModuleList(Block(8) for _ in range(depth))
        self.head = nn.Linear(8, 100, bias=False)

    def forward(self, tokens):
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
