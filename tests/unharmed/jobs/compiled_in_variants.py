"""torch.compile: in the loop, of functions, anew after a reset, with graph breaks (https://github.com/pytorch/pytorch/issues/128199)."""
# recorded: any
import torch
import torch._dynamo
from small import batch, digest, net, sgd
from torch._dynamo.testing import CompileCounter

model = net()
optimizer = sgd(model)
counter = CompileCounter()


def loss_of(given, samples, wanted):
    result = given(samples)
    torch._dynamo.graph_break()
    return (result - wanted).square().mean()


compiled = torch.compile(loss_of, backend=counter)
whole = torch.compile(model, backend="eager", fullgraph=True)
for number in range(10):
    samples, wanted = batch(number)
    loss = compiled(model, samples, wanted) if number % 2 else (whole(samples) - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(number, loss.item())
    if number == 6:
        torch._dynamo.reset()
print(counter.frame_count, type(whole).__name__, digest(model))
