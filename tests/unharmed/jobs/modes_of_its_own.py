"""A dispatch mode and a mode of torch functions of its own around each step, which count (https://github.com/pytorch/pytorch/issues/195746)."""
# recorded: failed
# says: a torch dispatch mode that the script entered is still on
from collections import Counter

import torch
from small import digest, net, sgd, step
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

seen, functions = Counter(), Counter()


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        functions[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


model = net()
optimizer = sgd(model)
step(model, optimizer, 0)
for number in range(1, 8):
    with Dispatched(), Functions():
        step(model, optimizer, number)
    print(torch._C._len_torch_function_stack())
print(sorted(seen.items()), sorted(functions.items()), digest(model))
