"""EMA and SWA of the weights, and statistics of batches after them (https://pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema)."""
import torch
from small import batch, digest, sgd, step
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
optimizer = sgd(model)
averages = [AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))]
schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
for number in range(9):
    step(model, optimizer, number)
    schedule.step()
    for one in averages:
        one.update_parameters(model)
    print(number, optimizer.param_groups[0]["lr"])
for one in averages:
    update_bn([batch(number)[0] for number in range(3)], one)
print(digest(model, *averages))
