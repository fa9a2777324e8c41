"""Gradients of several batches from loaders that are nested, compiled, wrapped and end early, with warnings as errors (https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation)."""
import warnings

import torch
from small import digest, sgd
from torch import nn
from torch.utils.data import DataLoader, Dataset, dataloader

warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)


class Pairs(Dataset):
    """Each item comes from a loader of its own."""

    def __getitem__(self, number):
        if number == 40:
            raise LookupError("the shard ends here")
        return next(iter(DataLoader(torch.arange(8.0).reshape(2, 4) + number, 2))).flatten()

    def __len__(self):
        return 64


@torch.compile(backend="eager")
def doubled(batches):
    return 2 * next(batches)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = sgd(model)
own = dataloader._BaseDataLoaderIter.__next__
for epoch in range(2):
    batches = iter(DataLoader(Pairs(), 2))
    try:
        for number in range(32):
            samples = doubled(batches) if number % 3 == 2 else next(batches)
            (model(samples / 100).square().mean() / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            if number == 9:
                before = dataloader._BaseDataLoaderIter.__next__
                dataloader._BaseDataLoaderIter.__next__ = lambda loading, before=before: before(loading)
            if number == 14:
                dataloader._BaseDataLoaderIter.__next__ = before
    except LookupError as error:
        print("failed:", error)
print(own.__name__, own.__qualname__, digest(model))
