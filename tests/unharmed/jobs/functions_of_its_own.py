"""Autograd functions of its own, errors in their backward, anomaly mode, hooks on nodes (https://pytorch.org/docs/stable/notes/extending.html)."""
import warnings

import torch
from small import batch, digest, net, sgd, step

warnings.simplefilter("ignore")


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fails):
        ctx.save_for_backward(x)
        ctx.fails = fails
        return x.clamp(-1, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        if ctx.fails:
            raise ArithmeticError("in backward")
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1), None


model = net()
optimizer = sgd(model)
seen = []
for number in range(10):
    samples, wanted = batch(number)
    loss = (Clipped.apply(model(samples), number in (2, 5)) - wanted).square().mean()
    loss.grad_fn.register_hook(lambda inputs, outputs: seen.append(len(inputs)))
    optimizer.zero_grad()
    try:
        with torch.autograd.set_detect_anomaly(number == 5):
            loss.backward()
    except ArithmeticError as error:
        print(number, "failed:", error, torch.is_anomaly_enabled())
        continue
    optimizer.step()
    print(number, loss.item(), type(loss.grad_fn).__name__)
print(seen, digest(model))
