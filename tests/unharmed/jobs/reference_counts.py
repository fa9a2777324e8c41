"""Counts of references to parameters, gradients and modules between steps (https://github.com/Stonesjtu/pytorch_memlab/issues/17)."""
import sys

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
step(model, optimizer, 0)
for number in range(1, 9):
    step(model, optimizer, number)
    print(number, [sys.getrefcount(one) for one in model.parameters()],
          [sys.getrefcount(one.grad) for one in model.parameters()], [sys.getrefcount(one) for one in model])
print(digest(model))
