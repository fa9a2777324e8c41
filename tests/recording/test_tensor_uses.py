"""When allocations were last used: tensors that are kept unused are planted, and found."""

from __future__ import annotations

import gzip
import json

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import distprof
from distprof.recording import tensor_uses as uses
from support.jobs import called
from support.made_up_traces import op

STEPS = "wait=2,count=0,time=0,trace=0,arrivals=0,memory=3"


def by_address(work):
    """The names of the operators that used each tensor of `work` last; it yields them while they live."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiled:
        addresses = {name: tensor.data_ptr() for name, tensor in work()}
    found = {}
    for row in uses.tensor_uses(profiled.profiler.kineto_results.experimental_event_tree()):
        found.setdefault(row["address"], []).append(row)
    return {name: found[address][0]["used_by"] for name, address in addresses.items()}


def test_the_last_operator_that_reads_is_named():
    def work():
        a, b, alone = torch.rand(1001), torch.rand(1002), torch.rand(1003)
        yield from (("through a view", a), ("in a list", b), ("never read", alone))
        torch.exp(a)
        view = a.view(7, 143).t()[1:]
        sine = view.sin()
        yield "made", sine
        both = torch.cat([b, b])
        yield "made of a list", both
        a.view(-1).detach()
        b.t()

    assert by_address(work) == {"through a view": "aten::sin", "in a list": "aten::cat", "never read": "aten::rand",
                                "made": "aten::sin", "made of a list": "aten::cat"}


def test_what_autograd_saved_is_used_by_backward():
    def work():
        weight = torch.rand(50, 50, requires_grad=True)
        x = torch.rand(3, 50)
        hidden = x @ weight
        active = hidden.relu()
        yield from (("input", x), ("before relu", hidden), ("behind relu", active))
        active.sum().backward()
        yield "gradient", weight.grad
        weight.grad.mul_(2)
        torch.rand(9)

    assert by_address(work) == {"input": "MmBackward0", "before relu": "aten::relu", "behind relu": "ReluBackward0",
                                "gradient": "aten::mul_"}


def test_each_allocation_at_an_address_has_uses_of_its_own():
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiled:
        for function in (torch.sin, torch.exp, torch.cos) * 5:
            x = torch.rand(100_003)
            function(x)
            del x
    rows = uses.tensor_uses(profiled.profiler.kineto_results.experimental_event_tree())
    used = [row["used_by"] for row in sorted(rows, key=lambda row: row["made_ns"])]
    assert used[::2] == ["aten::sin", "aten::exp", "aten::cos"] * 5 == used[1::2]


def recorded(path):
    """Each step keeps a tensor that only its first operator needs."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with distprof.record(path, steps=STEPS):
        for _ in range(6):
            waste = torch.ones(3_000_001)
            scale = waste.prod()
            loss = (model(torch.randn(32, 64)) * scale).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            del waste


@pytest.mark.long
def test_a_planted_tensor_is_the_first_of_those_kept_for_nothing(tmp_path):
    recorded(tmp_path / "run")
    found = json.loads(called("memory", "--lifetimes", "--json", tmp_path / "run").stdout)
    planted = [row for row in found["lifetimes"][:3] if row["size_bytes"] == 12_000_004]
    assert len(planted) == 2 and {(row["op"], row["used_by"]) for row in planted} == {("aten::ones", "aten::prod")}
    events = json.loads(gzip.decompress((tmp_path / "run" / "rank00000" / "memory.json.gz").read_bytes()))
    base = events["baseTimeNanoseconds"]
    ends = {base + round((event["ts"] + event["dur"]) * 1000) for event in events["traceEvents"]
            if event.get("name") == "aten::prod"}
    for row in planted:
        assert min(abs(row["last_used_ns"] - end) for end in ends) <= 2
        assert row["unused_ns"] == row["freed_ns"] - row["last_used_ns"] > 0
    (peak,) = found["peaks"]
    assert peak["unused_bytes"] >= 12_000_004
    assert sum(one["unused_bytes"] for one in found["groups"]) == peak["unused_bytes"]
    text = called("memory", "--lifetimes", tmp_path / "run").stdout
    assert "kept unused" in text and "aten::prod" in text and "no longer used" in text


@pytest.mark.long
def test_with_too_many_events_uses_are_left_out_and_that_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(uses, "MOST_EVENTS", 10)
    recorded(tmp_path / "run")
    assert "last uses of allocations were not computed" in capsys.readouterr().err
    assert json.loads(called("memory", "--json", tmp_path / "run").stdout)["peaks"][0]["unused_bytes"] is None
    done = called("memory", "--lifetimes", tmp_path / "run")
    assert done.returncode == 1 and "--steps memory=1" in done.stderr


def test_a_torch_that_tells_nothing_costs_the_uses_alone(tmp_path, monkeypatch, capsys):
    def fails(_):
        raise AttributeError("no such thing")

    monkeypatch.setattr("distprof.recording.passes.memory.tensor_uses", fails)
    recorded(tmp_path / "run")
    assert "does not report when allocations were last used: no such thing" in capsys.readouterr().err
    assert called("memory", tmp_path / "run").returncode == 0


def test_traces_of_other_programs_do_not_tell(tmp_path):
    memory = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": {
        "Bytes": 8, "Addr": 1, "Total Allocated": 8, "Device Type": 0, "Device Id": -1}}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [op("aten::a", 0, 5), memory]}))
    done = called("memory", "--lifetimes", tmp_path / "rank0.json")
    assert done.returncode == 1 and "when tensors were last used" in done.stderr


@pytest.mark.parametrize("inputs", [[], [None, 1, "a", [1, None]]])
def test_inputs_that_are_no_tensors_are_passed_over(inputs):
    assert list(uses._tensors(inputs)) == []
