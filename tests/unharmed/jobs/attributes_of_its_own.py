"""Models with `__getattr__`, `__setattr__`, properties, `__len__`, `__eq__` and `__slots__` that count who asks (https://github.com/pytorch/pytorch/issues/105445)."""
from collections import Counter

import torch
from small import digest, sgd, step
from torch import nn

asked = Counter()


class Odd(nn.Module):
    __slots__ = ("slot",)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.slot = nn.Linear(8, 4)
        self.closed = True

    @property
    def costly(self):
        asked["property"] += 1
        raise RuntimeError("too early")

    @property
    def weight(self):
        asked["weight"] += 1
        return self.slot.weight

    def __getattr__(self, name):
        asked["getattr", name] += name in ("slot", "costly", "weight", "closed")
        return super().__getattr__(name)

    def __setattr__(self, name, value):
        if self.__dict__.get("closed"):
            raise AttributeError(name)
        super().__setattr__(name, value)

    def __len__(self):
        return 0

    def __eq__(self, other):
        asked["eq"] += 1
        raise TypeError("not comparable")

    __hash__ = nn.Module.__hash__

    def forward(self, x):
        return self.slot(x)


model = Odd()
optimizer = sgd(model)
asked.clear()
for number in range(8):
    step(model, optimizer, number)
print(sorted(map(str, (+asked).items())), digest(model))
