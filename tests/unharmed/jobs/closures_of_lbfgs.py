"""LBFGS calls the loss again and again in one step (https://pytorch.org/docs/stable/generated/torch.optim.LBFGS.html)."""
import torch
from small import digest, loss_of, net

model = net()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
calls = []
for number in range(7):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        calls.append(number)
        return loss

    print(number, optimizer.step(closure).item())
print(len(calls), digest(model))
