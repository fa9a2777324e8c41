"""`torch.set_default_device("meta")`: new tensors have no memory unless asked for (https://github.com/meta-pytorch/torchrec/pull/2484)."""
# telling
import torch
from torch import nn

torch.set_default_device("meta")
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
print(model[0].weight.device)
model.to_empty(device="cpu")
random = torch.Generator("cpu").manual_seed(0)
with torch.no_grad():
    for one in model.parameters():
        one.copy_(torch.randn(one.shape, generator=random, device="cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(9):
    samples = torch.randn(16, 8, generator=random, device="cpu")
    loss = model(samples).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(number, torch.ones(1).device, loss.device)
torch.set_default_device(None)
from small import digest

print(digest(model))
