"""`distprof ops` on traces that were made up: what it shows, what it refuses, and bad input."""

from __future__ import annotations

import csv
import json

import polars as pl
import pytest

import distprof
from distprof.merge.operators.grouping import NUMBERS, SORTS
from distprof.merge.operators.selection import ASKED
from distprof.merge.operators.sums import BY, KEYS
from support.jobs import called
from support.made_up_traces import folder, op

MM = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
MM_TEXT = "[[2, 3], [3, 4]]"
STEPS = [op("ProfilerStep#3", 0, 100, cat="user_annotation"), op("ProfilerStep#4", 100, 100, cat="user_annotation")]
TWO = ([*STEPS, op("aten::linear", 10, 20, **MM), op("aten::mm", 12, 8, **MM), op("aten::mm", 110, 10, **MM)],
       [*STEPS, op("aten::linear", 10, 50, **MM), op("aten::mm", 12, 30, **MM), op("aten::mm", 110, 30, **MM)])


def data(path, *flags):
    done = called("ops", "--json", *flags, path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_times_are_added_up_over_ranks_and_the_slow_rank_is_named(tmp_path):
    found = data(folder(tmp_path, *TWO))
    mm, linear = found["ops"]
    assert (mm["op"], mm["calls"], mm["self_host_ns"], mm["host_ns"]) == ("aten::mm", 4, 78_000, 78_000)
    assert (linear["op"], linear["self_host_ns"], linear["host_ns"]) == ("aten::linear", 32_000, 70_000)
    assert (mm["min_ns"], mm["max_ns"], mm["mean_ns"]) == (8_000, 30_000, 19_500)
    assert mm["std_ns"] == pytest.approx(10_523.8, abs=0.1)
    assert (mm["slowest_rank"], mm["slowest_ratio"]) == (1, 60 / 39)
    assert mm["share"] == 78 / 110 and linear["cumulative_share"] == 1
    assert (mm["shapes"], mm["dtypes"], mm["step"]) == ("[[2, 3], [3, 4]]", '["float", "float"]', None)
    assert found["totals"]["self_host_ns"] == 110_000 and found["steps"] == [3, 4]
    assert found["coverage"]["source"] == "shapes" and mm["flops"] == 4 * 48 and mm["module"] is None


@pytest.mark.parametrize(("flags", "left"), [
    (("--op", "^aten::m"), {"aten::mm": 4}), (("--rank", 0), {"aten::mm": 2, "aten::linear": 1}),
    (("--step", 4), {"aten::mm": 2}), (("--max-time", 20), {"aten::mm": 4}),
    (("--min-time", 20), {"aten::linear": 2}), (("--type", "annotation"), {"ProfilerStep#3": 2, "ProfilerStep#4": 2}),
    (("--dtype", "float"), {"aten::mm": 4, "aten::linear": 2}), (("--dtype", "int"), {}),
    (("--module", "*"), {}), (("--top", 1), {"aten::mm": 4})])
def test_what_is_asked_for_is_left(tmp_path, flags, left):
    found = data(folder(tmp_path, *TWO), *flags)
    assert {row["op"]: row["calls"] for row in found["ops"]} == left


@pytest.mark.parametrize(("flags", "code", "told"), [
    (("--sort", "self_cpu_time"), 2, "did you mean self_cpu_time_total"),
    (("--sort", "flop"), 2, "did you mean flops"), (("--type", "opertor"), 2, "--type operator"),
    (("--by", "shapes"), 2, "did you mean shape"),
    (("--type", "kernels"), 2, "--type kernel"), (("--rank", 7), 2, "--rank 7 is not in this run; choose from 0, 1"),
    (("--step", 9), 2, "--step 9 is not in this run; choose from 3, 4"),
    (("--phase", "sleep"), 2, "--phase sleep is not in this run; it has none"),
    (("--op", "("), 2, "is not a valid regular expression"),
    (("--peak", 0), 2, "--peak must be positive"),
    (("--bandwidth", "nan"), 2, "--bandwidth must be positive"),
    (("--stack", 3), 2, "--stack needs --by stack"),
    (("--by", "stack", "--stack", 0), 2, "0 is not in the range"),
    (("--min-time", 3, "--max-time", 2), 2, "--min-time must be below --max-time")])
def test_what_is_not_there_is_refused(tmp_path, flags, code, told):
    done = called("ops", *flags, folder(tmp_path, *TWO))
    assert done.returncode == code and told in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(("sort", "first"), [
    ("count", "aten::mm"), ("cpu_time_total", "aten::mm"), ("self_cpu_time_total", "aten::mm"),
    ("cpu_time", "aten::linear"), ("max_ns", "aten::linear"), ("calls", "aten::mm")])
def test_orders_have_torch_s_names_and_ours(tmp_path, sort, first):
    assert data(folder(tmp_path, *TWO), "--sort", sort)["ops"][0]["op"] == first


@pytest.mark.long
@pytest.mark.parametrize(("option", "values"), [("--sort", SORTS), ("--by", BY), ("--type", ASKED)])
def test_every_value_of_an_option_works(tmp_path, option, values):
    run = folder(tmp_path, *TWO)
    for value in values:
        done = called("ops", option, value, *(("--stack", 2) if value == "stack" else ()), run)
        lacks_stacks = value == "stack" and "--by stack needs Python calls" in done.stderr
        assert lacks_stacks or (done.returncode == 0 and not done.stderr), (value, done.stderr)


@pytest.mark.long
def test_text_and_tables_have_the_same_rows(tmp_path):
    run = folder(tmp_path, *TWO)
    text = called("ops", "--by", "op", "--by", "step", run).stdout
    assert "sums over 2 ranks x 2 steps (3-4): self time 110.00 us on hosts" in text
    assert "FLOPs and bytes come from the shapes in the trace" in text
    assert ["aten::mm", "4", "2", "40.00", "us"] in [line.split()[:5] for line in text.splitlines()]
    written = list(csv.DictReader(called("ops", "--csv", run).stdout.splitlines()))
    assert [row["op"] for row in written] == ["aten::mm", "aten::linear"]
    assert list(written[0]) == [*KEYS, *NUMBERS, "bound"]
    assert called("ops", "--markdown", run).stdout.startswith("| op | calls | self host |")
    assert called("ops", "--parquet", tmp_path / "x.parquet", run).returncode == 0
    assert pl.read_parquet(tmp_path / "x.parquet")["calls"].to_list() == [4, 2]
    for path in (run, tmp_path / "no run"):  # it is seen before the run is read
        again = called("ops", "--parquet", tmp_path / "x.parquet", path)
        assert again.returncode == 2 and "exists already" in again.stderr
    lost = called("ops", "--parquet", tmp_path / "missing" / "x.parquet", run)
    assert lost.returncode == 1 and "missing" in lost.stderr and "None" not in lost.stderr, lost.stderr
    assert called("ops", "--by", "op", "--by", "op", run).stdout == called("ops", run).stdout


@pytest.mark.parametrize("events", [[], [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}]])
def test_a_trace_without_operators_is_said(tmp_path, events):
    done = called("ops", folder(tmp_path, events))
    assert done.returncode == 0 and "no slice in the timelines has the category of an operator" in done.stdout


def test_what_is_lost_of_a_trace_is_said(tmp_path):
    file = folder(tmp_path, *TWO) / "rank1.json"
    file.write_bytes(file.read_bytes()[:-60])
    done = called("ops", "--strict", tmp_path)
    assert done.returncode == 3 and "rank 1: rank1.json is cut off after 4 whole events" in done.stderr


def test_slices_without_a_duration_are_left_out_and_counted(tmp_path):
    bad = [op("aten::mm", 1, -5), {**op("aten::mm", 3, 1), "dur": "NaN"}, op("aten::add", 5, 2)]
    found = data(folder(tmp_path, bad))
    assert [row["op"] for row in found["ops"]] == ["aten::add"]
    assert found["left_out"]["slices_without_duration"] == 2
    assert "2 slices without usable times skipped" in called("ops", tmp_path).stdout


def test_odd_shapes_and_kernels_without_a_launch_keep_their_times(tmp_path):
    events = [op("aten::mm", 1, 5, **{"Input Dims": "[[2, "}), op("aten::mm", 11, 5, **{"Input Dims": 7}),
              op("lonely", 2, 4, cat="kernel", tid=7, correlation=99), op("odd|name\n", 30, 1)]
    found = {row["op"]: row for row in data(folder(tmp_path, events))["ops"]}
    assert found["aten::mm"]["self_host_ns"] == 10_000 and found["lonely"]["self_device_ns"] == 4_000
    assert len(called("ops", "--markdown", tmp_path).stdout.splitlines()) == 2 + len(found)
    assert "odd|name\\n" in called("ops", tmp_path).stdout


def test_a_damaged_rank_is_named_and_the_others_are_shown(tmp_path):
    run = folder(tmp_path, *TWO)
    (run / "rank1.json").write_text('{"distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": 7}')
    done = called("ops", run)
    assert done.returncode == 0 and "aten::mm" in done.stdout and "rank 1" in done.stdout, done.stdout + done.stderr
    assert called("ops", "--strict", run).returncode == 3


@pytest.mark.parametrize("number", [pytest.param(20_000, marks=pytest.mark.long),
                                    pytest.param(1_000_000, marks=pytest.mark.stress)])
def test_all_shapes_differ(tmp_path, number):
    """A row each, and FLOPs of all of them."""
    sizes = [(1 + one % 1000, 1 + one // 1000) for one in range(number)]
    with (tmp_path / "rank0.json").open("w") as file:
        file.write('{"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [')
        for place, (rows, inner) in enumerate(sizes):
            given = {"Input Dims": [[rows, inner], [inner, 8]], "Input type": ["float", "float"]}
            file.write(("," if place else "") + json.dumps(op("aten::mm", 3 * place, 2, **given)))
        file.write("]}")
    done = called("ops", "--by", "shape", "--csv", tmp_path)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) == number, done.stderr
    assert {(row["shapes"], int(row["flops"])) for row in rows} == {
        (f"[[{rows}, {inner}], [{inner}, 8]]", 16 * rows * inner) for rows, inner in sizes}


def test_shapes_that_are_missing_leave_flops_unknown(tmp_path):
    events = [op("aten::mm", 1, 5, **MM), op("aten::mm", 11, 5), op("aten::relu", 21, 5)]
    found = data(folder(tmp_path, events), "--by", "op", "--by", "shape")
    assert {(row["op"], row["shapes"]): row["flops"] for row in found["ops"]} == {
        ("aten::mm", MM_TEXT): 48, ("aten::mm", None): None, ("aten::relu", None): 0}
    assert found["coverage"]["calls_without_shapes"] == found["coverage"]["unknown_calls"] == 1


def test_kernels_of_a_graph_know_that_a_graph_launched_them(tmp_path):
    calls = [op(name, 3 * number, 2, cat="cuda_runtime", correlation=number)
             for number, name in ((1, "cudaGraphLaunch"), (2, "cudaLaunchKernel"))]
    kernels = [op(name, 10 * place, 7, cat="kernel", tid=9, correlation=number)
               for place, (name, number) in enumerate((("gemm", 1), ("gemm", 1), ("spin", 2)), 4)]
    rows = distprof.read_run(folder(tmp_path, calls + kernels)).ops().filter(pl.col("type") == "kernel")
    assert {row["op"]: (row["launched_by"], row["calls"]) for row in rows.iter_rows(named=True)} == {
        "gemm": ("cudaGraphLaunch", 2), "spin": (None, 1)}
    assert {row["op"] for row in data(tmp_path)["ops"] if row["self_device_ns"]} == {"gemm", "spin"}


def test_device_times_of_operators_add_up_to_those_of_kernels(tmp_path):
    launch = {"cat": "cuda_runtime"}
    events = [op("aten::mm", 1, 20, **MM), op("cudaLaunchKernel", 3, 2, correlation=1, **launch),
              op("cudaMemcpyAsync", 30, 2, correlation=2, **launch),
              op("gemm", 40, 7, cat="kernel", tid=9, correlation=1),
              op("Memcpy HtoD", 50, 3, cat="gpu_memcpy", tid=9, correlation=2),
              op("Memset", 60, 2, cat="gpu_memset", tid=9, correlation=99),
              op("lonely", 70, 5, cat="kernel", tid=9)]
    found = data(folder(tmp_path, events))
    assert {row["op"]: row["self_device_ns"] for row in found["ops"]} == {
        "aten::mm": 7000, "cudaLaunchKernel": 0, "cudaMemcpyAsync": 0, "Memcpy HtoD": 3000, "Memset": 2000,
        "lonely": 5000}
    kernels = data(tmp_path, "--type", "kernel", "--type", "memcpy", "--type", "memset")
    assert found["totals"]["self_device_ns"] == kernels["totals"]["self_device_ns"] == 17_000


def test_operators_are_told_apart_by_the_functions_around_them(tmp_path):
    """Backward has the functions of forward; names of built-in functions, with addresses, and modules are none."""
    python = {"cat": "python_function"}
    events = [op("a.py(1): main", 0, 100, **python), op("b.py(9): once", 1, 9, **python), op("aten::mm", 2, 7),
              op("b.py(5): twice", 11, 20, **python), op("nn.Module: Linear_0", 12, 18, **python),
              op("torch/nn/modules/module.py(1): _call_impl", 13, 16, **python),
              op("<built-in method mm of type object at 0x7f>", 14, 9, **python),
              op("aten::mm", 15, 8, **{"Sequence number": 3}), op("aten::add", 17, 2),
              op("autograd::engine::evaluate_function: MmBackward0", 40, 9, **{"Sequence number": 3}),
              op("aten::mm", 42, 4), op("c.py(2): hook", 47, 2, **python), op("aten::add", 47.5, 1),
              op("aten::mm", 200, 5)]
    found = {(row["op"], row["stack"]): row["self_host_ns"] for row in data(
        folder(tmp_path, events), "--by", "op", "--by", "stack", "--stack", 2)["ops"]}
    twice = "b.py(5): twice < a.py(1): main"
    assert found == {
        ("aten::mm", "b.py(9): once < a.py(1): main"): 7000, ("aten::mm", twice): 6000 + 4000,
        ("aten::add", twice): 2000, ("autograd::engine::evaluate_function: MmBackward0", twice): 4000,
        ("aten::add", "c.py(2): hook < b.py(5): twice"): 1000, ("aten::mm", None): 5000}
    whole = {row["stack"]: row["calls"] for row in data(tmp_path, "--by", "stack", "--stack", 1, "--op", "mm")["ops"]}
    assert whole == {"b.py(9): once": 1, "b.py(5): twice": 2, None: 1}
    frame = distprof.read_run(tmp_path).ops(stack=1)
    assert set(frame["stack"]) == {"b.py(9): once", "b.py(5): twice", "c.py(2): hook", None}
    plain = data(tmp_path)["ops"]
    assert {row["op"]: row["calls"] for row in plain}["aten::mm"] == 4 and not any(row["stack"] for row in plain)


def test_stacks_that_were_not_recorded_are_said(tmp_path):
    done = called("ops", "--by", "stack", folder(tmp_path, *TWO))
    assert done.returncode == 1 and "--by stack needs Python calls" in done.stderr and "with_stack=True" in done.stderr
