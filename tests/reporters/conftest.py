"""The count of a deep model."""

from __future__ import annotations

import pytest
import torch

import distprof
from support.stack import Stack


@pytest.fixture(scope="module")
def stack():
    return distprof.count(Stack(), torch.zeros(2, 5, dtype=torch.long), backward=True)
