"""`distprof waits` on traces that were made up: what it derives from them, what it refuses, and bad input."""

from __future__ import annotations

import csv
import json

import polars as pl
import pytest
import torch

import distprof
from distprof.merge.waits.run_waits import KEYS, NUMBERS
from support.jobs import called
from support.made_up_traces import folder, op


def step(number, ts):
    return op(f"ProfilerStep#{number}", ts, 1000, cat="user_annotation")


def on_device(slow=1):
    """A rank whose host waits for a GPU twice in step 3 and once in step 4."""
    return [step(3, 0), step(4, 1000),
            op("aten::item", 10, 90 * slow), op("aten::_local_scalar_dense", 11, 80 * slow),
            op("cudaMemcpyAsync", 12, 5, cat="cuda_runtime"),
            op("cudaStreamSynchronize", 20, 60 * slow, cat="cuda_runtime"),
            op("cudaDeviceSynchronize", 500, 100, cat="cuda_runtime"),
            op("aten::item", 300, 4), op("aten::_local_scalar_dense", 301, 2),
            op("cudaStreamSynchronize", 1100, 30, cat="cuda_runtime"),
            op("cudaStreamSynchronize", 5000, 400, cat="cuda_runtime"),
            op("kernel", 15, 50, tid=7, cat="kernel")]


LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
ON_HOST = [step(3, 0), op(LOADER, 5, 50, cat="user_annotation"),
           op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 60, 9, cat="user_annotation"),
           op("Net [Net]", 100, 400, cat="user_annotation"), op("model [Net]", 101, 300, cat="user_annotation"),
           op("aten::is_nonzero", 110, 20), op("aten::item", 111, 15), op("aten::_local_scalar_dense", 112, 10),
           op("Work.wait", 600, 70, cat="user_annotation"),
           op("Optimizer.step#Adam.step", 700, 90, cat="user_annotation"), op("aten::item", 710, 5),
           op("_c10d_functional::wait_tensor", 800, 30), op("aten::mm", 900, 10)]


def data(path, *flags):
    done = called("waits", "--json", *flags, path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_calls_of_the_runtime_are_waits_with_the_operator_around_them(tmp_path):
    found = data(folder(tmp_path, on_device(), on_device(slow=2)), "--by", "op")
    assert found["source"] == "timeline" and found["steps"] == [3, 4] and found["ranks"] == [0, 1]
    seen = {(row["op"], row["library_call"]): row for row in found["waits"]}
    item = seen["cudaStreamSynchronize", "aten::item"]
    assert (item["calls"], item["blocked_ns"], item["longest_ns"], item["mean_ns"]) == (2, 180_000, 120_000, 90_000)
    assert (item["slowest_rank"], item["slowest_ns"], item["waits_for"], item["file"]) == (1, 120_000, "device", None)
    assert seen["cudaDeviceSynchronize", None]["blocked_ns"] == 200_000
    assert seen["cudaStreamSynchronize", None]["blocked_ns"] == 60_000, "what lies in no step is the profiler's own"
    assert len(seen) == 3, "an item of a tensor on the host waits for nothing"
    assert found["totals"]["blocked_ns"] == 440_000 and found["totals"]["steps_ns"] is None


def test_a_rank_without_a_device_shows_what_it_waits_for_and_what_would(tmp_path):
    seen = {row["op"]: row for row in data(folder(tmp_path, ON_HOST), "--by", "op")["waits"]}
    assert {name: (row["waits_for"], row["blocking_calls"], row["blocked_ns"]) for name, row in seen.items()} == {
        "DataLoader.__next__": ("data", 1, 50_000), "Work.wait": ("communication", 1, 70_000),
        "_c10d_functional::wait_tensor": ("communication", 1, 30_000), "aten::item": ("device", 0, 0)}
    assert (seen["aten::item"]["calls"], seen["aten::item"]["library_call"]) == (1, "aten::is_nonzero")
    assert (seen["aten::item"]["phase"], seen["DataLoader.__next__"]["phase"]) == ("forward", "data")
    text = called("waits", tmp_path).stdout
    assert "without lines of the script\n" in text and "--steps" not in text, "flags do nothing for these traces"
    assert "no wait here" in text and "(1 call)" in text


def test_slices_of_the_compiler_are_one_wait_with_what_lies_inside(tmp_path):
    run = folder(tmp_path, [step(3, 0), op("Net [Net]", 5, 900, cat="user_annotation"),
                            op("_compile.compile_inner (dynamo_timed)", 10, 500, cat="user_annotation"),
                            op("build_guards (dynamo_timed)", 400, 50, cat="user_annotation"), op("aten::item", 420, 5),
                            op("backward._backward_impl (dynamo_timed)", 700, 60, cat="user_annotation")])
    row, = data(run, "--by", "op")["waits"]
    assert (row["op"], row["waits_for"], row["calls"], row["blocked_ns"]) == ("torch.compile", "compiler", 2, 560_000)


@pytest.mark.parametrize(("flags", "left"), [
    ((), [180, 200, 60]), (("--rank", 0), [60, 100, 30]), (("--step", 4), [60]), (("--top", 1), [200]),
    (("--by", "phase"), [440]), (("--sort", "calls", "--top", 2), [200, 180])])
def test_what_is_asked_for_is_left(tmp_path, flags, left):
    rows = data(folder(tmp_path, on_device(), on_device(slow=2)), *flags)["waits"]
    assert sorted(row["blocked_ns"] for row in rows) == sorted(1000 * one for one in left)


@pytest.mark.parametrize(("flags", "told"), [
    (("--by", "lines"), "did you mean line?"), (("--by", "modul"), "did you mean module?"),
    (("--by", "xyz"), "unknown value 'xyz' for --by; choose from line, op, for, module, phase, thread, rank, step"),
    (("--sort", "blocked"), "did you mean blocked_ns"), (("--rank", 7), "--rank 7 is not in this run; choose from 0-1"),
    (("--step", 9), "--step 9 is not in this run; choose from 3-4"), (("--top", 0), "0 is not in the range")])
def test_what_is_not_there_is_refused(tmp_path, flags, told):
    done = called("waits", *flags, folder(tmp_path, on_device(), on_device()))
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_tables_have_the_same_rows_and_a_notebook_too(tmp_path):
    run = folder(tmp_path, on_device(), ON_HOST)
    written = list(csv.DictReader(called("waits", "--csv", run).stdout.splitlines()))
    assert list(written[0]) == [*KEYS, *NUMBERS]
    assert sum(int(row["blocked_ns"]) for row in written) == data(run)["totals"]["blocked_ns"]
    assert distprof.read_run(run).waits()["blocked_ns"].sum() == data(run)["totals"]["blocked_ns"]
    assert set(distprof.read_run(run).waits()["rank"]) == {0, 1}


@pytest.mark.parametrize("events", [
    [], [op("aten::mm", 1, 5)], [op("cudaStreamSynchronize", 1, -5, cat="cuda_runtime")]])
def test_a_trace_in_which_nothing_waits_is_said(tmp_path, events):
    done = called("waits", folder(tmp_path, events))
    assert done.returncode == 0 and "1 rank: no waits" in done.stdout, done.stdout + done.stderr
    assert data(tmp_path)["waits"] == []
    assert called("waits", "--csv", tmp_path).stdout.splitlines() == [",".join((*KEYS, *NUMBERS))]


def test_a_damaged_rank_is_named_and_the_others_are_shown(tmp_path):
    run = folder(tmp_path, on_device(), on_device())
    (run / "rank1.json").write_text('{"distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": 7}')
    done = called("waits", run)
    assert done.returncode == 0 and "cudaDeviceSynchronize" in done.stdout and "rank 1" in done.stdout
    assert called("waits", "--strict", run).returncode == 3


@pytest.mark.job
def test_a_run_without_the_pass_and_without_a_timeline_says_how_to_get_one(tmp_path, ddp):
    copy = tmp_path / "run"
    copy.mkdir()
    for path in (*ddp.glob("rank*/*"), ddp / "run.json"):
        if path.name != "trace.json.gz":
            (copy / path.relative_to(ddp)).parent.mkdir(exist_ok=True)
            (copy / path.relative_to(ddp)).write_bytes(path.read_bytes())
    done = called("waits", copy)
    assert done.returncode == 1 and "has neither waits from the sync pass nor a timeline" in done.stderr
    assert "hint: record it with --steps sync=2" in done.stderr


@pytest.mark.job
def test_waits_of_a_recorded_timeline_are_those_of_its_steps(ddp):
    rows = distprof.read_run(ddp).waits()
    assert set(rows["step"]) <= {6, 7} and rows["file"].is_null().all()
    waits = pl.concat(pl.read_parquet(path) for path in ddp.glob("rank*/events.parquet")).filter(
        pl.col("name") == "Work.wait", pl.col("step").is_not_null())
    mine = rows.filter(pl.col("op") == "Work.wait")
    assert mine["calls"].sum() == len(waits) and mine["blocked_ns"].sum() == waits["duration_ns"].sum()


@pytest.mark.long
def test_the_timeline_of_the_memory_pass_tells_waits_as_well(tmp_path):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=2,count=0,time=0,trace=0,arrivals=0,memory=2"):
        for _ in range(5):
            loss = model(torch.randn(3, 4)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    found = json.loads(called("waits", "--json", tmp_path / "run").stdout)
    assert found["source"] == "timeline" and found["steps"] == [2, 3] and found["totals"]["steps_ns"] > 0
    assert {row["op"]: row["calls"] for row in found["waits"]} == {"aten::item": 2}
