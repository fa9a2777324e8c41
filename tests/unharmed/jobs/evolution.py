"""Evolution strategies: no backward and no optimizer (https://arxiv.org/abs/1703.03864)."""
# recorded: any
import torch
from small import digest, loss_of, net
from torch.nn.utils import parameters_to_vector, vector_to_parameters

model = net()
best = parameters_to_vector(model.parameters()).detach()
for number in range(6):
    noise = torch.randn(8, best.numel())
    losses = []
    with torch.no_grad():
        for one in noise:
            vector_to_parameters(best + 0.1 * one, model.parameters())
            losses.append(loss_of(model, number))
    scores = torch.stack(losses)
    best = best - 0.05 * ((scores - scores.mean())[:, None] * noise).mean(0)
    print(number, scores.mean().item())
vector_to_parameters(best, model.parameters())
print(digest(model))
