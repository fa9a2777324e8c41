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

WIDTHS = {"Block_0.Linear_0": 4, "Block_1.Linear_1": 8}


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
    assert sums == {""}


def test_recomputed_modules_have_the_names_of_forward(tmp_path):
    found = rows(recorded(tmp_path, recomputed=True), "--by", "op", "--by", "phase", "--op", "addmm")
    assert {(row["module"], row["phase"], row["calls"]) for row in found} == {
        ("Block_0.Linear_0", "forward", 1), ("Block_1.Linear_1", "forward", 1), ("Block_0.Linear_0", "recompute", 1)}


def test_a_merge_has_the_same(tmp_path):
    run = recorded(tmp_path)
    before = rows(run, "--by", "op")
    assert called("merge", "--operators", run).returncode == 0
    assert rows(run, "--by", "op") == before
