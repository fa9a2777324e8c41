"""It checks that what it uses is what it imported, as plug-in systems do: functions, methods, names (https://github.com/huggingface/accelerate/pull/872)."""
# recorded: complete
import inspect
import queue
import threading

import torch
from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(9):
    step(model, optimizer, number)
    print(number, threading.Thread.join.__name__, threading.Condition.wait.__qualname__, torch.Tensor.cpu.__name__,
          inspect.signature(threading.Thread.join), inspect.signature(torch.optim.SGD.step),
          queue.Queue.get.__module__, torch.Tensor.tolist.__name__, callable(optimizer.step),
          inspect.ismethod(optimizer.step), optimizer.step.__self__ is optimizer)
print(digest(model))
