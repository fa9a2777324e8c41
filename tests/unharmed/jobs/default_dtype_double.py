"""float64 everywhere by default, and flags of the process that it sets once (https://pytorch.org/docs/stable/generated/torch.set_default_dtype.html)."""
import torch
from small import digest

torch.set_default_dtype(torch.float64)
torch.set_printoptions(precision=12)
torch.set_flush_denormal(True)
torch.set_float32_matmul_precision("high")
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    loss = model(torch.full((2, 4), float(number))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss, torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.is_grad_enabled(),
          torch.get_num_threads())
print(digest(model))
