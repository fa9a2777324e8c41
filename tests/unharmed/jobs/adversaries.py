"""A generator and a critic in turns, with a penalty on gradients of gradients (https://github.com/pytorch/examples/tree/main/dcgan)."""
# recorded: any
import torch
from small import digest
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
ours, theirs = torch.optim.Adam(generator.parameters()), torch.optim.RMSprop(critic.parameters())
for number in range(8):
    for _ in range(2):
        real = torch.randn(4, 8).requires_grad_()
        score = critic(real).sum()
        (gradient,) = torch.autograd.grad(score, real, create_graph=True)
        loss = critic(generator(torch.randn(4, 4)).detach()).mean() - score / 4 + (gradient.norm(dim=1) - 1).square().mean()
        theirs.zero_grad()
        loss.backward()
        theirs.step()
    ours.zero_grad()
    (-critic(generator(torch.randn(4, 4))).mean()).backward()
    ours.step()
    print(number, loss.item())
print(digest(generator, critic))
