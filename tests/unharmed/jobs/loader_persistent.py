"""Workers of data loaders that stay, with seeds of their own, and one that fails (https://github.com/pytorch/pytorch/pull/11985)."""
import torch
from small import digest, sgd
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for number in range(6):
            if number == 5 and info.id:
                raise LookupError(f"worker {info.id}")
            yield torch.randn(8, generator=torch.Generator().manual_seed(100 * info.id + number))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = sgd(model)
    loader = DataLoader(Stream(), batch_size=1, num_workers=2, persistent_workers=True, prefetch_factor=2,
                        multiprocessing_context="fork", generator=torch.Generator().manual_seed(1))
    for epoch in range(2):
        try:
            for number, samples in enumerate(loader):
                loss = model(samples).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(epoch, number, loss.item())
        except LookupError as error:
            print("failed:", str(error).splitlines()[-1])
            break
    del loader
    print(digest(model))
