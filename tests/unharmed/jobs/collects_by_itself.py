"""The garbage collector is off; it collects between steps and counts (https://github.com/pytorch/pytorch/issues/63211)."""
import gc

import torch
from small import digest, loss_of, net, sgd

gc.disable()
gc.freeze()
gc.set_threshold(1234, 5, 6)
phases = []
gc.callbacks.append(lambda phase, info: phases.append((phase, info["generation"])))
model = net()
optimizer = sgd(model)
tensors = []
for number in range(9):
    optimizer.zero_grad()
    loss_of(model, number).backward()
    optimizer.step()
    gc.collect()
    tensors.append(sum(isinstance(one, torch.Tensor) for one in gc.get_objects()))
print(gc.isenabled(), gc.get_threshold(), len(gc.callbacks), phases, gc.garbage)
print(tensors[1:], digest(model))
