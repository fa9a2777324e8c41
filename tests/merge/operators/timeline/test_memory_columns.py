"""Bytes that operators allocate and free, and runs that have the timeline of the memory pass alone."""

from __future__ import annotations

import gzip
import json
from collections import Counter

import polars as pl
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import distprof
from distprof.merge.operators.run_operators import run_operators
from distprof.merge.operators.timeline.memory_changes import HOSTS, META
from distprof.merge.operators.timeline.memory_events import DEVICES as NAMES
from distprof.merge.run.open_run import open_run
from support.jobs import called
from support.made_up_traces import folder, op

HOST, DEVICE = 0, 1


def change(ts, num_bytes, *, tid=1, kind=HOST):
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts,
            "args": {"Bytes": num_bytes, "Device Type": kind, "Addr": 1}}


def shown(path, *flags):
    found = json.loads(called("ops", "--json", *flags, path).stdout)["ops"]
    return {row["op"]: tuple(row[f"{part}{what}_bytes"] for what in ("allocated", "freed") for part in ("self_", ""))
            for row in found}


def train(steps, each=lambda: None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        each()


def test_bytes_belong_to_the_innermost_operator_of_the_thread(tmp_path):
    events = [op("aten::linear", 0, 50), op("aten::addmm", 10, 20), op("aten::relu", 50, 9, tid=2),
              change(5, 100), change(12, 40), change(30, -8), change(31, -100), change(50, 7, tid=2),
              change(20, 9, tid=2), change(99, 1000)]
    assert shown(folder(tmp_path, events)) == {
        "aten::linear": (100, 140, 100, 108), "aten::addmm": (40, 40, 8, 8), "aten::relu": (7, 7, 0, 0)}
    text = called("ops", tmp_path).stdout
    assert "self allocated" in text and "self freed" in text


def test_memory_of_devices_counts_where_there_is_any(tmp_path):
    events = [op("aten::mm", 0, 50), change(5, 100), change(6, 512, kind=DEVICE), op("aten::add", 60, 5),
              change(61, 70)]
    assert shown(folder(tmp_path, events)) == {"aten::mm": (512, 512, 0, 0), "aten::add": (0, 0, 0, 0)}


def test_ranks_that_recorded_none_are_not_counted_as_zero(tmp_path):
    mm = op("aten::mm", 0, 50)
    both = folder(tmp_path, [mm, change(5, 100)], [mm, op("aten::add", 60, 5)])
    assert shown(both) == {"aten::mm": (100, 100, 0, 0), "aten::add": (None,) * 4}
    assert shown(both, "--rank", 1) == {"aten::mm": (None,) * 4, "aten::add": (None,) * 4}
    assert "allocated" not in called("ops", "--rank", 1, both).stdout


@pytest.mark.parametrize("args", [{"Bytes": 100}, {"Bytes": 100, "Device Type": 14}, {"Device Type": 0},
                                  {"Bytes": "NaN", "Device Type": 0}, {"Bytes": 1e400, "Device Type": 0}, {}])
def test_changes_that_say_no_size_or_no_place_are_none(tmp_path, args):
    assert shown(folder(tmp_path, [op("aten::mm", 0, 50), {**change(5, 1), "args": args}])) == {"aten::mm": (None,) * 4}


def test_torch_s_numbers_of_device_types():
    types = {name.lower(): int(number) for name, number in torch.autograd.DeviceType.__members__.items()}
    assert (types["cpu"], types["mkldnn"], types["ideep"]) == HOSTS and types["meta"] == META
    named = {name: number for number, name in NAMES.items() if name != "device"}
    assert named.items() <= types.items() and NAMES[types["privateuse1"]] == "device"


@pytest.mark.parametrize(("sort", "first"), [
    ("self_cpu_memory_usage", "aten::add"), ("cuda_memory_usage", "aten::linear"), ("freed_bytes", "aten::linear"),
    ("self_allocated_bytes", "aten::mm")])
def test_orders_have_torch_s_names(tmp_path, sort, first):
    events = [op("aten::linear", 0, 50), op("aten::mm", 1, 20), change(2, 100), change(3, -99), change(30, 50),
              change(31, -40), op("aten::add", 60, 9), change(61, 11), op("aten::mm", 80, 9)]
    assert next(iter(shown(folder(tmp_path, events), "--sort", sort))) == first


def test_what_operators_keep_is_what_torch_says(tmp_path):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiler:
        train(3)
    profiler.export_chrome_trace(str(tmp_path / "rank0.json"))
    rows = run_operators(open_run(tmp_path)).rows
    ours = rows.group_by("op").agg(
        alone=pl.col("self_allocated_bytes").sum() - pl.col("self_freed_bytes").sum(),
        total=pl.col("allocated_bytes").sum() - pl.col("freed_bytes").sum())
    theirs = {event.key: (event.self_cpu_memory_usage, event.cpu_memory_usage) for event in profiler.key_averages()
              if event.key != "[memory]"}
    assert {name: (alone, total) for name, alone, total in ours.iter_rows()} == theirs
    assert sum(alone > 0 for alone, _ in theirs.values()) > 5


@pytest.fixture(scope="module")
def of_memory(tmp_path_factory):
    out = tmp_path_factory.mktemp("memory") / "run"
    with distprof.record(out, steps="wait=2,count=1,time=0,trace=0,arrivals=0,memory=3"):
        train(8)
    return out


@pytest.mark.long
def test_a_run_with_the_memory_pass_alone_has_operators(of_memory):
    """Every byte, by looking through all slices for each change."""
    events = json.loads(gzip.decompress((of_memory / "rank00000" / "memory.json.gz").read_bytes()))["traceEvents"]
    slices = [event for event in events if event.get("cat") in ("cpu_op", "user_annotation")]
    expected = Counter()
    for event in events:
        if event.get("name") == "[memory]":
            around = [one for one in slices if one["tid"] == event["tid"]
                      and one["ts"] <= event["ts"] <= one["ts"] + one["dur"]]
            inner = max(around, key=lambda one: (one["ts"], -one["dur"]), default={"name": None})["name"]
            expected[inner, event["args"]["Bytes"] > 0] += abs(event["args"]["Bytes"])
    rows = run_operators(open_run(of_memory)).rows
    sums = rows.group_by("op").agg(pl.col("self_allocated_bytes", "self_freed_bytes").sum())
    found = {(name, is_made): number for name, *each in sums.iter_rows()
             for is_made, number in zip((True, False), each, strict=True)}
    assert {key: number for key, number in found.items() if number} == {
        key: number for key, number in expected.items() if key[0] is not None and number}
    data = json.loads(called("ops", "--json", of_memory).stdout)
    assert data["coverage"]["flops_ratio"] == 1.0 and data["steps"] == [3, 4, 5]
    assert "CPU Mem" in called("ops", "--torch", of_memory).stdout


def test_a_run_with_the_memory_pass_alone_is_merged(of_memory, tmp_path):
    done = called("merge", "--out", tmp_path / "merged", of_memory)
    assert done.returncode == 0 and "1 of 1 rank," in done.stdout, done.stdout + done.stderr
    events = json.loads(gzip.decompress((tmp_path / "merged" / "trace.json.gz").read_bytes()))["traceEvents"]
    names = Counter(event["name"] for event in events)
    assert names["[memory]"] > 100 and names["aten::addmm"] == 6
