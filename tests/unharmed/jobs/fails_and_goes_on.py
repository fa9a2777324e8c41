"""A batch that does not fit fails in forward, and the loop goes on with the next (https://pytorch.org/docs/stable/notes/faq.html)."""
import traceback

import torch
from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)


def refuse(module, given):
    if refuse.now:
        raise MemoryError("too long")


refuse.now = False
model[2].register_forward_pre_hook(refuse)
for number in range(12):
    refuse.now = number in (1, 3, 5, 7)
    try:
        step(model, optimizer, number)
    except MemoryError as error:
        frames = traceback.extract_tb(error.__traceback__)
        print(number, error, error.__context__, [one.name for one in frames if one.filename.endswith(("small.py", "on.py"))])
    try:
        model(torch.ones(2, 3))
    except RuntimeError as error:
        print(number, str(error).splitlines()[0])
print(digest(model))
