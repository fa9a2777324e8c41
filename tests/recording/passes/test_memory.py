"""The memory pass on real models: sums are the allocator's, and what is kept for backward is what autograd saved."""

from __future__ import annotations

import gzip
import json
import re
import sys

import polars as pl
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import distprof
from distprof.recording.tracing.profiler_room import LEAST_BYTES, MOST_BYTES, ProfilerRoom
from support import forked
from support.jobs import EXAMPLES, PATIENCE_S, SCRIPTS, called, clean_environ
from support.jobs import distprof as command

pytestmark = pytest.mark.long

STEPS = "wait=2,count=0,time=0,trace=0,arrivals=0,memory=2"


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 8, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)), (8, 16)),
    "cnn": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
            (4, 3, 12, 12)),
    "transformer": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2,
                                                  enable_nested_tensor=False), (3, 5, 16)),
    "checkpointed": (Checkpointed, (3, 5, 16)),
    "recurrent": (Recurrent, (3, 5, 16)),
}


def recorded(tmp_path, name):
    torch.manual_seed(0)
    model, shape = MODELS[name][0](), MODELS[name][1]
    optimizer = torch.optim.Adam(model.parameters())
    with distprof.record(tmp_path / "run", steps=STEPS):
        for _ in range(6):
            loss = model(torch.randn(shape)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model, json.loads(called("memory", "--json", tmp_path / "run").stdout)


def allocator_peak(folder):
    """Most that the allocator counted, above what it had counted before and not freed since."""
    events = json.loads(gzip.decompress((folder / "memory.json.gz").read_bytes()))["traceEvents"]
    seen = sorted((event["ts"], event["args"]["Ev Idx"], event["args"]) for event in events
                  if event.get("name") == "[memory]")
    found = [args for _, _, args in seen]
    before, made, most = found[0]["Total Allocated"] - found[0]["Bytes"], set(), 0
    for one in found:
        if one["Bytes"] < 0 and one["Addr"] not in made:  # of an earlier test, whose session counted it
            before += one["Bytes"]
        made.add(one["Addr"])
        most = max(most, one["Total Allocated"] - before)
    return most


@pytest.mark.parametrize("name", MODELS)
def test_sums_over_categories_and_modules_are_the_allocator_s_peak(tmp_path, name):
    model, found = recorded(tmp_path, name)
    (peak,) = found["peaks"]
    assert peak["peak_bytes"] == allocator_peak(tmp_path / "run" / "rank00000") and peak["unknown_bytes"] == 0
    for key in ("category", "module", "op", "phase"):
        done = json.loads(called("memory", "--json", "--by", key, tmp_path / "run").stdout)
        assert sum(one["peak_bytes"] for one in done["groups"]) == peak["peak_bytes"], key
    num_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    held = {one["category"]: one["size_bytes"] for one in found["held_before"]}
    assert held["parameter"] == held["gradient"] == num_bytes
    assert held["optimizer_state"] == 2 * num_bytes + 4 * len(list(model.parameters()))
    groups = {one["category"]: one for one in found["groups"]}
    assert groups["gradient"]["allocated_bytes"] == 2 * num_bytes
    assert groups["input"]["allocated_bytes"] == 2 * 4 * torch.Size(MODELS[name][1]).numel()


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_what_is_kept_for_backward_is_what_autograd_saved(tmp_path, name):
    """autograd's own hooks tell which storages it saved; those of parameters and inputs were there before."""
    _, found = recorded(tmp_path, name)
    torch.manual_seed(0)
    model, x, saved = MODELS[name][0](), torch.randn(MODELS[name][1]), {}
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.setdefault(
            tensor.untyped_storage().data_ptr(), tensor), lambda tensor: tensor):
        model(x).pow(2).mean()
    before = {tensor.untyped_storage().data_ptr() for tensor in (x, *model.parameters(), *model.buffers())}
    kept = sum(tensor.untyped_storage().nbytes() for address, tensor in saved.items() if address not in before)
    # autograd holds the few bytes of a mean outside of these hooks
    assert abs(sum(one["kept_bytes"] for one in found["groups"]) / 2 - kept) <= 8 * 4


@pytest.mark.job
@pytest.mark.parametrize(("job", "categories", "missed"), [
    ((EXAMPLES / "train_ddp.py", "--steps", 5), {"gradient", "activation", "temporary"}, False),
    # threads of gloo free buffers of FSDP unseen: torch counts them for ever
    pytest.param((SCRIPTS / "sharded.py",), {"gradient", "activation", "temporary", "communication"}, True,
                 marks=pytest.mark.stress)])
def test_jobs_of_two_ranks_add_up_as_well(tmp_path, job, categories, missed):
    done = command("run", "--nproc-per-node", 2, "--out", tmp_path / "run", "--steps", STEPS, *job)
    assert done.returncode == 0, done.stderr
    found = json.loads(called("memory", "--json", tmp_path / "run").stdout)
    assert [peak["rank"] for peak in found["peaks"]] == [0, 1]
    for peak in found["peaks"]:
        counted = allocator_peak(tmp_path / "run" / f"rank{peak['rank']:05d}")
        assert peak["peak_bytes"] + peak["unknown_bytes"] <= counted if missed else (
            peak["peak_bytes"], peak["unknown_bytes"]) == (counted, 0)
        assert peak["unknown_bytes"] >= 0
    assert sum(one["peak_bytes"] for one in found["groups"]) == sum(peak["peak_bytes"] for peak in found["peaks"])
    assert categories <= {one["category"] for one in found["groups"]}
    rows = distprof.read_run(tmp_path / "run").memory()
    assert rows.filter(pl.col("category") == "gradient")["module_path"].null_count() == 0


def bounded(tmp_path, limit, *arguments):
    done = forked.run([sys.executable, SCRIPTS / "many_small_ops.py", tmp_path / "run", *map(str, arguments)],
                      capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                      env=clean_environ() | {"DISTPROF_PROFILER_MEMORY": limit})
    assert done.returncode == 0, done.stderr
    found = re.search(r"steps (\d+) grew (\d+)", done.stdout)
    return int(found[1]), int(found[2]), done.stderr


@pytest.mark.job
@pytest.mark.parametrize(("times", "steps"), [
    pytest.param(30, 60, id="between steps"), pytest.param(3000, 2, id="within a step", marks=pytest.mark.stress)])
def test_a_pass_that_would_take_too_much_memory_ends_early_and_says_so(tmp_path, times, steps):
    """Unbounded it would take some 2 GB."""
    ran, grew, said = bounded(tmp_path, "200MB", times, steps)
    assert ran == steps + 4 and grew < 600e6
    assert said.count("the memory pass stopped in step") == 1 and "DISTPROF_PROFILER_MEMORY=" in said
    found = called("memory", tmp_path / "run")
    assert found.returncode == 0 and "incomplete: the memory pass of rank 0 stopped in step" in found.stdout
    assert "the peak may be higher" in found.stdout
    assert called("memory", "--strict", tmp_path / "run").returncode == 3
    data = json.loads(called("memory", "--json", tmp_path / "run").stdout)
    (peak,) = data["peaks"]
    assert peak["peak_bytes"] == sum(one["peak_bytes"] for one in data["groups"]) > 0
    assert data["ended_early"] == [{"rank": 0, "step": pytest.approx(2, abs=steps)}]


@pytest.mark.job
def test_a_pass_within_its_room_says_nothing(tmp_path):
    ran, _, said = bounded(tmp_path, "4GB", 2, 3)
    assert ran == 7 and "stopped in step" not in said
    assert json.loads(called("memory", "--json", tmp_path / "run").stdout)["ended_early"] == []


@pytest.mark.parametrize(("text", "expected"), [("500MB", 500_000_000), ("2 GB", 2 * 10**9), ("1.5kb", 1500),
                                                ("77", 77), ("many", None), ("0", None), ("-1", None), ("1TB", None)])
def test_what_the_user_allows_is_read(monkeypatch, text, expected):
    monkeypatch.setenv("DISTPROF_PROFILER_MEMORY", text)
    room = ProfilerRoom()
    room.start()
    assert room.most_bytes == expected if expected else LEAST_BYTES <= room.most_bytes <= MOST_BYTES
