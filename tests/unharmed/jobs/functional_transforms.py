"""torch.func: gradients of each sample, of functions without modules' state, by forward mode (https://pytorch.org/docs/stable/func.html)."""
import torch
from small import batch, digest, net
from torch.func import functional_call, grad, grad_and_value, jvp, vmap

model = net()
weights = {name: one.detach() for name, one in model.named_parameters()}


def loss_of(weights, sample, wanted):
    return (functional_call(model, weights, (sample[None],)) - wanted).square().mean()


optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    samples, wanted = batch(number)
    gradients, losses = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))(weights, samples, wanted)
    _, along = jvp(lambda one: model(one).sum(), (samples,), (torch.ones_like(samples),))
    curved = grad(lambda one: grad(lambda two: model(two).square().sum())(one).square().sum())(samples[0])
    for name, one in model.named_parameters():
        one.grad = gradients[name].mean(0)
    optimizer.step()
    print(number, losses.mean().item(), along.item(), curved.sum().item())
print(digest(model))
