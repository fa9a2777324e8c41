"""A search over learning rates: many small models, trials in threads, some given up (https://github.com/optuna/optuna/issues/4539)."""
# recorded: any
from concurrent.futures import ThreadPoolExecutor

import torch
from small import digest, net, step


class Pruned(Exception):
    pass


def trial(number):
    model = net(width=4 + number)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * (number + 1))
    for one in range(4):
        loss = step(model, optimizer, one)
        if number % 4 == 3 and one == 2:
            raise Pruned(number)
    return loss, digest(model)


def tried(number):
    try:
        return trial(number)
    except Pruned as error:
        return "pruned", str(error)


torch.manual_seed(0)
for number in range(6):
    print(number, tried(number))
