"""What is traced while a model runs is no work; what a model on fake or meta tensors does is what is counted."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import distprof
from support.recording import Recorded
from support.two_layers import BACKWARD, FORWARD, HIDDEN, OUT, ROWS, WIDTH, model, rows


def exported(inner, x):
    torch.export.export(inner, (x,), strict=False)


def on_meta(inner, x):
    copy.deepcopy(inner).to("meta")(x.to("meta"))


def on_fakes(inner, x):
    with FakeTensorMode(allow_non_fake_inputs=True) as fakes:
        copy.deepcopy(inner)(fakes.from_tensor(x))


def as_a_graph(inner, x):
    make_fx(inner)(x)


def linearized(inner, x):
    """Its first result is the model's; the graph of the derivative is made by another run."""
    return torch.func.linearize(inner, x)[0]


def by_torchscript(inner, x):
    torch.jit.trace(inner, (x,), check_trace=False)


WAYS = (exported, on_meta, on_fakes, as_a_graph, linearized, by_torchscript)


class Tracing(nn.Module):
    def __init__(self, way) -> None:
        super().__init__()
        self.inner, self.way = model(), way

    def forward(self, x):
        found = self.way(self.inner, x)
        return found if isinstance(found, torch.Tensor) else self.inner(x)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_a_trace_in_a_model_is_no_work(way):
    network = Tracing(way)
    counts = distprof.count(network, rows())
    assert counts.forward_flops == counts.flops == FORWARD and not counts.uncounted
    assert counts.by_module()["inner.2"] == 2 * ROWS * HIDDEN * OUT
    assert distprof.count(lambda x: network(x) * 2, rows()).flops == FORWARD


@pytest.mark.long
@pytest.mark.parametrize("way", [way for way in WAYS if way is not by_torchscript])  # hooks of a job are silent there
@pytest.mark.filterwarnings("ignore")
def test_a_trace_in_a_job_is_no_work(tmp_path, monkeypatch, way):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    network = Tracing(way)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with distprof.record(tmp_path, steps="wait=1,count=1,time=0,trace=0"):
        for _ in range(2):
            network(rows()).square().sum().backward()
            optimizer.step()
    seen = Recorded(tmp_path)
    assert seen.info["status"] == "complete"
    assert sum(seen.flops("forward").values()) == FORWARD and sum(seen.flops("backward").values()) == BACKWARD


@pytest.mark.filterwarnings("ignore")
def test_a_module_that_is_compiled_at_its_first_call_counts_once():
    from functorch.compile import aot_module, nop

    compiled = aot_module(model(), fw_compiler=nop)
    for _ in range(2):
        counts = distprof.count(compiled, rows(), backward=True)
        assert (counts.forward_flops, counts.backward_flops, counts.recompute_flops) == (FORWARD, BACKWARD, 0)
        assert counts.model_flops == FORWARD + BACKWARD


@pytest.mark.long
def test_a_model_without_data_is_counted():
    meta, x = model().to("meta"), rows()
    assert distprof.count(meta, x).flops == distprof.count(meta, x.to("meta")).flops == FORWARD
    assert distprof.count(lambda: meta(x.to("meta"))).flops == FORWARD
    assert distprof.count(lambda: torch.empty(ROWS, WIDTH, device="meta") @ torch.empty(
        WIDTH, OUT, device="meta")).flops == 2 * ROWS * WIDTH * OUT
    with FakeTensorMode() as fakes, warnings.catch_warnings():
        assert distprof.count(model(), fakes.from_tensor(x)).flops == FORWARD
    with FakeTensorMode(allow_non_fake_inputs=True) as fakes:
        assert distprof.count(model(), fakes.from_tensor(x), backward=True).flops == FORWARD + BACKWARD
