"""Modules of traces that torch.profiler recorded with stacks: operators belong to them, forward and backward."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from support.jobs import called
from support.made_up_traces import folder, op

WIDTHS = {"Net_0.Block_0.Linear_0": 4, "Net_0.Block_1.Linear_1": 8}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(16, width)
        self.outer = nn.ReLU()

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(data))


class Net(nn.Module):
    """Its second block follows the first one, or reads the data as well."""

    def __init__(self, *, recomputed: bool) -> None:
        super().__init__()
        self.first, self.second = Block(4), Block(8)
        self.recomputed = recomputed

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        first = checkpoint(self.first, data, use_reentrant=False) if self.recomputed else self.first(data)
        return first.sum() + self.second(data).sum()


def recorded(path: Path, *, recomputed: bool = False) -> Path:
    model, data = Net(recomputed=recomputed), torch.randn(32, 16, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True) as found:
        model(data).backward()
    found.export_chrome_trace(str(path / "trace.json"))
    return path


def rows(run: Path, *args: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(called("ops", "--json", "--by", "module", *args, run).stdout)["ops"]
    return found


@pytest.mark.parametrize("stack", [False, True])
def test_operators_belong_to_the_modules_that_call_them(tmp_path, stack):
    found = rows(recorded(tmp_path), "--by", "op", "--by", "phase", "--by", "class", *(["--by", "stack"] * stack))
    forward = {row["module"]: row for row in found if row["op"] == "aten::addmm"}
    assert {name: row["flops"] for name, row in forward.items()} == {
        name: 2 * 32 * 16 * width for name, width in WIDTHS.items()}
    assert {(row["phase"], row["class"]) for row in forward.values()} == {("forward", "Linear")}
    backward = Counter[str]()
    for row in found:
        if row["op"] == "aten::mm" and row["phase"] == "backward":
            backward[row["module"]] += row["flops"]
    assert backward == {name: 2 * 2 * 32 * 16 * width for name, width in WIDTHS.items()}
    sums = {row["module"] for row in found if row["op"] == "aten::sum" and row["phase"] == "forward"}
    assert sums == {"Net_0"}


def test_recomputed_modules_have_the_names_of_forward(tmp_path):
    found = rows(recorded(tmp_path, recomputed=True), "--by", "op", "--by", "phase", "--op", "addmm")
    assert {(row["module"], row["phase"], row["calls"]) for row in found} == {
        ("Net_0.Block_0.Linear_0", "forward", 1), ("Net_0.Block_1.Linear_1", "forward", 1),
        ("Net_0.Block_0.Linear_0", "recompute", 1)}


def test_a_merge_has_the_same(tmp_path):
    run = recorded(tmp_path)
    before = rows(run, "--by", "op")
    assert called("merge", "--operators", run).returncode == 0
    assert rows(run, "--by", "op") == before


class Embedded(nn.Module):
    """Takes a slice before its embeddings: it has the number of the node that the first of them makes."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(50, 8), nn.Embedding(16, 8)
        self.register_buffer("places", torch.arange(16)[None])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = self.places[:, :ids.shape[1]]
        return self.word(ids) + self.place(places)


def test_backward_belongs_to_the_operator_that_made_the_node(tmp_path):
    model = Embedded()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True) as found:
        model(torch.zeros(2, 4, dtype=torch.long)).sum().backward()
    found.export_chrome_trace(str(tmp_path / "trace.json"))
    given = rows(tmp_path, "--by", "op", "--phase", "backward", "--op", "embedding_dense_backward")
    assert sorted((row["module"], row["calls"]) for row in given) == [
        ("Embedded_0.Embedding_0", 1), ("Embedded_0.Embedding_1", 1)]


def module(name: str, ts: float, dur: float) -> dict[str, Any]:
    return op(name, ts, dur, cat="python_function")


@pytest.mark.parametrize("other", [
    op("kern [x]", 30, 5, tid=7, cat="kernel", correlation=9), op("lambda [x]", 12, 2, cat="python_function"),
    op("my::kernel [v2]", 30, 5, tid=2), op("decode [bs32]", 0, 90, cat="user_annotation")])
def test_names_that_look_like_those_of_distprof_change_nothing(tmp_path, other):
    run = folder(tmp_path, [module("nn.Module: Net_0", 1, 80), module("nn.Module: Linear_0", 10, 40),
                            op("aten::mm", 20, 10), other])
    assert [row["module"] for row in rows(run, "--by", "op", "--op", "aten::mm")] == ["Net_0.Linear_0"]


def test_several_outermost_modules_stay_apart(tmp_path):
    run = folder(tmp_path, [module("nn.Module: Net_0", 1, 20), op("aten::mm", 2, 10),
                            module("nn.Module: MSELoss_0", 30, 20), op("aten::mse_loss", 32, 10)])
    assert {row["op"]: (row["module"], row["class"]) for row in rows(run, "--by", "op", "--by", "class")} == {
        "aten::mm": ("Net_0", "Net"), "aten::mse_loss": ("MSELoss_0", "MSELoss")}


def test_a_module_in_an_operator_takes_none_of_its_time(tmp_path):
    run = folder(tmp_path, [op("MyFunction", 0, 100), module("nn.Module: Linear_0", 10, 80),
                            op("aten::linear", 20, 60)])
    found = {row["op"]: row["self_host_ns"] for row in rows(run, "--by", "op")}
    assert found == {"MyFunction": 40_000, "aten::linear": 60_000}
