"""The classes for Lightning: of the family of the package, and such that `ddp_spawn` can send them."""

from __future__ import annotations

import importlib.util
import pickle

import pytest
import torch

pytestmark = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")


@pytest.mark.long
def test_they_are_callbacks_and_profilers_and_can_be_sent_to_another_process(tmp_path):
    if importlib.util.find_spec("torchvision") is not None:
        from scripts import torchvision_operators  # noqa: F401 (before Lightning)
    import lightning.pytorch
    import lightning.pytorch.profilers

    from distprof.integrations.lightning import DistprofCallback, DistprofProfiler, callback_class

    assert issubclass(DistprofCallback, lightning.pytorch.Callback)
    assert issubclass(DistprofProfiler, lightning.pytorch.profilers.Profiler)
    assert callback_class("lightning.pytorch") is DistprofCallback
    for one in (DistprofCallback(tmp_path), DistprofProfiler(tmp_path)):
        assert type(pickle.loads(pickle.dumps(one))) is type(one)
    assert torch.is_grad_enabled()
