"""Loading the later batches of a step that accumulates gradients is data, and is counted once."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, dataloader

import distprof
from support.watched import noted, per_step

PLAN = "wait=1,count=0,time=2,trace=0,arrivals=0"
LOAD_S = 0.016
BATCHES = 4
"""Per step."""


class SlowData(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(LOAD_S)
        return torch.ones(4)


class SlowLoader(SlowData):
    def __getitem__(self, index: int) -> torch.Tensor:
        return next(iter(DataLoader(SlowData(), 1)))[0]


class Transform(nn.Module):
    def forward(self, data):
        time.sleep(LOAD_S)
        return data


class SlowTransform(SlowData):
    """As of torchvision: modules that are called while loading."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return Transform()(torch.ones(4))


@pytest.mark.parametrize(("dataset", "num_loads"), [(SlowData(), BATCHES), (SlowLoader(), BATCHES),
                                                    (SlowTransform(), BATCHES - 1)])
def test_loading_the_later_batches_of_a_step_is_data(tmp_path, short_rows, dataset, num_loads):
    """The first module that is called in a step ends what comes before forward, even a transform."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    own = dataloader._BaseDataLoaderIter.__next__
    with distprof.record(tmp_path / "run", steps=PLAN):
        for number, data in enumerate(DataLoader(dataset, 1)):
            model(data).sum().backward()
            if number % BATCHES == BATCHES - 1:
                optimizer.step()
    assert dataloader._BaseDataLoaderIter.__next__ is own
    columns = noted(tmp_path / "run").columns
    data_ns, forward_ns, backward_ns, span_ns = (
        per_step(columns, f"{name}_ns") for name in ("data", "forward", "backward", "span"))
    assert data_ns >= num_loads * LOAD_S * 1e3
    assert data_ns + forward_ns <= span_ns and backward_ns < LOAD_S * 1e3
