"""Hooks of all modules and all optimizers of its own (https://pytorch.org/docs/stable/generated/torch.nn.modules.module.register_module_forward_hook.html)."""
from collections import Counter

from small import digest, net, sgd, step
from torch.nn.modules import module as of_modules
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

calls, order = Counter(), []
handles = [of_modules.register_module_forward_pre_hook(lambda *_: calls.update(["before"])),
           of_modules.register_module_forward_hook(lambda *_: calls.update(["after"])),
           of_modules.register_module_full_backward_hook(lambda *_: calls.update(["backward"])),
           register_optimizer_step_pre_hook(lambda *_: order.append("pre")),
           register_optimizer_step_post_hook(lambda *_: order.append("post"))]
model = net()
optimizer = sgd(model)
for number in range(9):
    step(model, optimizer, number)
    print(number, sorted(calls.items()), order)
    if number == 5:
        for handle in handles:
            handle.remove()
print(digest(model))
