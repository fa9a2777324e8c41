"""`atexit` handlers save, train on, and fail; their order is kept (https://github.com/rkern/line_profiler/issues/55)."""
# telling
import atexit
import sys

atexit.register(lambda: print("first that was registered, last that is called"))

import torch
from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)


@atexit.register
def save():
    torch.save(model.state_dict(), "at_exit.pt")
    print("saved", digest(model))


@atexit.register
def more():
    step(model, optimizer, 100)
    print("one more step")


@atexit.register
def fails():
    sys.exit("in the midst")


for number in range(8):
    step(model, optimizer, number)
atexit.unregister(print)
print(atexit._ncallbacks() > 3, digest(model))
