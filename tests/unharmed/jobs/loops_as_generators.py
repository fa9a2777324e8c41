"""The loop is a generator, with context variables, that is left half way and closed (https://docs.python.org/3/library/contextvars.html)."""
import contextvars

import torch
from small import digest, net, sgd, step

current = contextvars.ContextVar("current", default=None)


def training(model):
    optimizer = sgd(model)
    try:
        with torch.enable_grad():
            for number in range(100):
                current.set(number)
                yield step(model, optimizer, number)
    finally:
        print("closed at", current.get(), torch.is_grad_enabled())


model = net()
with torch.no_grad():
    loop = training(model)
    for loss in loop:
        print(loss, torch.is_grad_enabled())
        if current.get() == 7:
            break
    loop.close()
print(current.get(), len(contextvars.copy_context()), digest(model))
