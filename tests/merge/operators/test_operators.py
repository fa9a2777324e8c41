"""Operators of runs that jobs recorded, beside the other tables of these runs, and of torch's own profiler."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict

import polars as pl
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from distprof.contract.tables import MODULES
from distprof.merge.operators.grouping import grouped
from distprof.merge.operators.rank_share import SCHEMA
from distprof.merge.operators.run_operators import run_operators
from distprof.merge.run.open_run import open_run
from distprof.merge.run.tables import read_table
from support.jobs import called, distprof
from support.kineto_files import DLRM, needs_shared


@pytest.mark.job
@pytest.mark.parametrize("name", ["ddp", "tp", "sharded"])
def test_flops_of_timed_operators_are_those_that_stats_shows(request, name):
    recorded = request.getfixturevalue(name)
    data = json.loads(called("ops", "--json", "--by", "rank", "--by", "phase", recorded).stdout)
    assert data["coverage"]["flops_ratio"] == 1.0
    shown = json.loads(distprof("stats", "--json", recorded).stdout)["per_gpu"]
    per_step = len(data["steps"]) * len(data["ranks"])
    flops = Counter()
    for row in data["ops"]:
        flops[row["phase"]] += row["flops"] or 0
    assert flops["forward"] == per_step * shown["fwd_flops"]["mean"] > 0
    assert flops["backward"] == per_step * shown["bwd_flops"]["mean"] > 0
    assert sum(flops.values()) == data["totals"]["flops"]


def test_flops_of_modules_are_those_of_the_table_of_modules(tp):
    run = open_run(tp)
    found = run_operators(run).rows.filter(pl.col("phase") == "forward", pl.col("rank") == 1)
    steps = found["step"].n_unique()
    each = dict(found.group_by("module_path").agg(pl.col("flops").sum() / steps).iter_rows())
    modules = read_table(run, MODULES).rows.filter(pl.col("rank") == 1)
    for path, flops in modules.select("module_path", "fwd_flops").iter_rows():
        inside = [value for name, value in each.items() if name is not None
                  and (not path or name == path or name.startswith(f"{path}."))]
        assert sum(inside) == flops
    classes = dict(found.drop_nulls("module_path").select("module_path", "class_name").unique().iter_rows())
    assert classes == {path: kind for path, kind in modules.select("module_path", "class_name").iter_rows()
                       if path in classes} and classes[""] == "Transformer"


def test_rates_are_over_the_time_in_which_the_work_is_done():
    """aten::convolution has FLOPs, and does its work in an operator that was not counted."""
    row = dict.fromkeys(SCHEMA) | {"rank": 0, "type": "operator", "calls": 1, "squared_ns": 0.0, "compute_ns": 250.0,
                                   "memory_ns": 1.0} | dict.fromkeys(("device_ns", "self_device_ns"), 0)
    rows = [row | {"op": "aten::convolution", "host_ns": 1000, "self_host_ns": 10, "flops": 5000, "causal_flops": 5000,
                   "bytes": 100},
            row | {"op": "aten::mkldnn_convolution", "host_ns": 990, "self_host_ns": 990, "compute_ns": None}]
    kinds = SCHEMA | {"flops": pl.Int64, "causal_flops": pl.Int64, "bytes": pl.Int64,
                       "compute_ns": pl.Float64, "memory_ns": pl.Float64}
    outer = grouped(pl.DataFrame(rows, schema=kinds), ["op"]).filter(op="aten::convolution").row(0, named=True)
    assert (outer["flops_per_second"], outer["bytes_per_second"]) == pytest.approx((5e9, 1e8))
    assert outer["roofline_ratio"] == 0.25


@pytest.mark.job
def test_the_roofline_says_what_limits_an_operator(tp):
    flags = ("--json", "--op", "^aten::(add)?mm$", "--by", "op", "--by", "shape", "--by", "rank", "--by", "module")
    bounds = set()
    for peak, bandwidth in ((1e9, 1e15), (1e15, 1e6), (1e15, 1e15)):
        for row in json.loads(called("ops", *flags, "--peak", peak, "--bandwidth", bandwidth, tp).stdout)["ops"]:
            if row["flops"] is None:  # of whole tensors, before DTensor divides the work
                assert row["bound"] is row["roofline_ratio"] is None
                continue
            compute, memory = row["flops"] / peak * 1e9, row["bytes"] / bandwidth * 1e9
            assert row["roofline_ratio"] == pytest.approx(max(compute, memory) / row["host_ns"])
            expected = "compute" if compute >= memory else "memory"
            assert row["bound"] == ("latency" if row["roofline_ratio"] < 0.1 else expected)
            bounds.add(row["bound"])
    assert bounds == {"compute", "memory", "latency"}
    published = json.loads(called("ops", *flags, tp).stdout)["ops"]
    assert {row["bound"] for row in published} == {None}, "nobody publishes peaks of CPUs"


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("profiled")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32),
                                torch.nn.TransformerEncoderLayer(32, 4, batch_first=True))
    optimizer = torch.optim.Adam(model.parameters())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(2):
            model(torch.randn(4, 8, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    return profiler, tmp_path / "trace.json"


@pytest.mark.long
def test_operators_are_those_of_torch_s_own_table(profiled):
    profiler, trace = profiled
    ours = grouped(run_operators(open_run(trace)).rows, ["op"])
    theirs = {(event.key, event.count, round(1000 * event.cpu_time_total), round(1000 * event.self_cpu_time_total))
              for event in profiler.key_averages() if not event.is_user_annotation}
    shown = ours.filter(pl.col("type") != "annotation")
    assert set(shown.select("op", "calls", "host_ns", "self_host_ns").iter_rows()) == theirs and len(theirs) > 80


@pytest.mark.parametrize("sort", [None, "cpu_time_total", "self_cpu_time_total", "cpu_time", "count"])
@pytest.mark.parametrize("by_shape", [False, True])
def test_torch_prints_the_same_table(profiled, sort, by_shape):
    profiler, trace = profiled
    theirs = profiler.key_averages(group_by_input_shape=by_shape).table(sort_by=sort, row_limit=1000)
    flags = [*(["--by", "shape"] if by_shape else []), *(["--sort", sort] if sort else []), "--top", 1000]
    assert called("ops", "--torch", *flags, trace).stdout == theirs


@pytest.mark.parametrize(("flags", "told"), [
    (("--rank", 5), "rank 5 has no timeline; --rank can be 0"),
    (("--sort", "share"), "unknown --sort 'share' for --torch"), (("--json",), "can be combined only with"),
    (("--by", "op"), "can be combined only with")])
def test_torch_takes_what_its_table_takes(profiled, flags, told):
    done = called("ops", "--torch", *flags, profiled[1])
    assert done.returncode == 2 and told in done.stderr


@pytest.mark.long
@needs_shared
def test_kernels_count_for_the_operators_that_launched_them():
    """By the launches of the trace, one after the other: eight ranks of a job that distprof did not record."""
    expected, total, by_rank, left_out = defaultdict(int), 0, Counter(), list[int]()
    for path in sorted((DLRM / "kineto").iterdir()):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
        launches = {event["args"]["correlation"]: event for event in events if event["cat"] == "cuda_runtime"
                    and "correlation" in event.get("args", {})}
        operators = [event for event in events if event["cat"] == "cpu_op"]
        for kernel in events:
            if kernel["cat"] not in ("kernel", "gpu_memcpy", "gpu_memset"):
                continue
            launch = launches.get(kernel["args"]["correlation"])
            if launch is None:  # launched before the profiler began: in no step
                left_out.append(kernel["dur"] * 1000)
                continue
            around = [
                one for one in operators if one["tid"] == launch["tid"] and one["ts"] <= launch["ts"]
                and launch["ts"] + launch["dur"] <= one["ts"] + one["dur"]]
            innermost = min(around, key=lambda one: (one["dur"], -one["ts"]), default=launch)
            expected[innermost["name"]] += kernel["dur"] * 1000
            total += kernel["dur"] * 1000
            by_rank[trace["distributedInfo"]["rank"]] += kernel["dur"] * 1000
    data = json.loads(called("ops", "--json", DLRM / "kineto").stdout)
    found = {row["op"]: row["self_device_ns"] for row in data["ops"] if row["self_device_ns"]}
    assert found == dict(expected) and data["totals"]["self_device_ns"] == total
    assert left_out and (data["left_out"]["commands_in_no_step"], data["left_out"]["in_no_step_ns"]) == (
        len(left_out), sum(left_out))
    ranks = json.loads(called("ops", "--json", "--by", "rank", DLRM / "kineto").stdout)["ops"]
    assert {row["rank"]: row["self_device_ns"] for row in ranks} == by_rank and len(by_rank) == 8
    kernels = json.loads(called("ops", "--json", "--type", "kernel", "--type", "memcpy", "--type", "memset",
                                  DLRM / "kineto").stdout)
    assert kernels["totals"]["self_device_ns"] == total and kernels["totals"]["self_host_ns"] == 0
