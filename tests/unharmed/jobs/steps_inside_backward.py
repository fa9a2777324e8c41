"""An optimizer for each parameter, stepped by a hook as soon as its gradient is there (https://pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html)."""
# recorded: any
import torch
from small import digest, loss_of, net

model = net()
optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}
order = []


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()
    order.append(tuple(parameter.shape))


for one in model.parameters():
    one.register_post_accumulate_grad_hook(update)
for number in range(9):
    loss_of(model, number).backward()
print(order[:4], len(order), [one.grad for one in model.parameters()], digest(model))
