"""Collectives and waits in code that is compiled around them: the same warnings (https://pytorch.org/docs/stable/torch.compiler_faq.html)."""
# ranks: 2
import warnings

import torch
import torch.distributed as dist
from small import batch, digest, net, sgd
from torch import nn

dist.init_process_group("gloo")
model = net()
optimizer = sgd(model)


@torch.compile(backend="eager")
def averaged(gradient):
    doubled = 2 * gradient
    torch._dynamo.graph_break()
    reduced(doubled)
    return doubled / 4 if doubled.sum().item() < 1e6 else gradient


def reduced(gradient):
    torch._dynamo.graph_break()
    dist.all_reduce(gradient)
    work = dist.broadcast(gradient, 0, async_op=True)
    torch._dynamo.graph_break()
    work.wait()


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for number in range(10):
        samples, wanted = batch(number)
        nn.functional.mse_loss(model(samples), wanted).backward()
        for parameter in model.parameters():
            parameter.grad = averaged(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
if dist.get_rank() == 0:
    print(digest(model), *sorted({str(one.message).partition("\n")[0][:99] for one in caught}), sep="\n")
dist.destroy_process_group()
