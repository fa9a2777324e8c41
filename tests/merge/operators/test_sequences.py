"""`distprof ops --sequences` against counting in the events of a trace by hand."""

import gzip
import json
import shutil
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.merge.operators.selection import Selection
from distprof.merge.operators.sequences import common_path, run_sequences
from distprof.merge.run.open_run import open_run
from distprof.merge.text.sequences import pattern_of
from support.jobs import ROOT, called
from support.made_up_traces import folder, op

GPU = ROOT.parent / "shared" / "traces" / "gpu"
H100 = ROOT / "tests" / "support" / "data" / "h100_streams.json.gz"
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
NAMES = ("add", "mul", "gemm")


def launch(name, at, begin, ran, *, stream=7, number):
    """An operator, its call of the runtime, and the kernel."""
    return [op(f"aten::{name}", at, 4), op("cudaLaunchKernel", at + 1, 2, cat="cuda_runtime", correlation=number),
            op(name, begin, ran, cat="kernel", tid=stream, correlation=number) | {"pid": 0}]


def step(number, begin, end):
    return op(f"ProfilerStep#{number}", begin, end - begin, cat="user_annotation")


def trace(steps):
    """Events of steps of (name, stream), and what is known of each kernel: its stream and step, name, start and end."""
    events, known, at, free, number = [], [], 0, defaultdict(int), 1
    for place, kernels in enumerate(steps):
        begin = at
        for name, stream in kernels:
            start = max(free[stream], at + 3)
            free[stream] = start + 3 + NAMES.index(name)
            events += launch(name, at, start, free[stream] - start, stream=stream, number=number)
            known.append(((stream, place), name, start * 1000, free[stream] * 1000))
            at, number = at + 5 + number % 3, number + 1
        events.append(step(place, begin, at + 1))
        at += 2
    return events, known


def occurrences(known, names):
    """Places of a sequence in kernels of one stream and step, the first that does not overlap each time."""
    texts = defaultdict(list)
    for where, *kernel in sorted(known, key=lambda one: one[2]):
        texts[where].append(kernel)
    for kernels in texts.values():
        place = 0
        while place + len(names) <= len(kernels):
            part = kernels[place:place + len(names)]
            if [name for name, *_ in part] == names:
                yield part
                place += len(names)
            else:
                place += 1


def check(row, ranks):
    names = [one["name"] for one in row["kernels"]]
    every = [list(occurrences(known, names)) for known in ranks]
    parts = [part for each in every for part in each]
    assert row["length"] == len(names) and row["calls"] == len(parts) >= 2
    assert row["ranks"] == [rank for rank, each in enumerate(every) if each]
    assert row["device_ns"] == sum(end - start for part in parts for _, start, end in part)
    assert row["gap_ns"] == sum(max(after[1] - before[2], 0) for part in parts
                                for before, after in pairwise(part))


STEPS = st.lists(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([7, 20])), max_size=10), min_size=1,
                 max_size=3)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=2))
def test_they_are_counted_as_by_hand(tmp_path_factory, ranks):
    made = [trace(steps) for steps in ranks]
    if not any(known for _, known in made):
        return
    place = folder(tmp_path_factory.mktemp("random"), *(events for events, _ in made))
    found = run_sequences(open_run(place), Selection(), most=32)
    for one in found.found:
        check({"kernels": [{"name": name} for name in one.names], "length": one.length, "calls": one.calls,
               "ranks": list(one.ranks), "device_ns": one.device_ns, "gap_ns": one.gap_ns},
              [known for _, known in made])
        assert list(one.launched_by) == [f"aten::{name}" for name in one.names]
    assert found.num_commands == sum(len(known) for _, known in made)
    assert found.device_ns == sum(end - start for _, known in made for *_, start, end in known)


def data(*words):
    done = called("ops", "--sequences", "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of_file(path):
    """Kernels, copies and fills of the trace of a rank, as those of `trace`, in steps if it marks some."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = [(one["ts"], one["ts"] + one["dur"], one["name"]) for one in events
             if one["name"].startswith("ProfilerStep#") and one.get("cat") == "user_annotation"]
    calls = {one["args"]["correlation"]: one["ts"] for one in events
             if one.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in one.get("args", {})}
    known = []
    for one in events:
        if one.get("cat") in ON_DEVICE:
            at = calls.get(one["args"].get("correlation"))
            inside = [name for begin, end, name in steps if at is not None and begin <= at < end]
            if inside or not steps:
                known.append(((one["pid"], one["tid"], *inside), one["name"], round(one["ts"] * 1000),
                              round((one["ts"] + one["dur"]) * 1000)))
    return known


def check_file(path):
    known, found = of_file(path), data(path)
    assert found["num_commands"] == len(known) and found["sequences"]
    for row in found["sequences"]:
        parts = list(occurrences(known, [one["name"] for one in row["kernels"]]))
        assert row["calls"] == len(parts)
        assert row["device_ns"] == pytest.approx(sum(end - start for part in parts for _, start, end in part), rel=1e-3)
    return found["sequences"]


def test_in_a_trace_of_an_h100_they_are_counted_as_by_hand(tmp_path):
    check_file(Path(shutil.copy(H100, tmp_path / "trace_rank0.json.gz")))


@pytest.mark.long
@pytest.mark.skipif(not GPU.is_dir(), reason="needs the traces of ../shared/traces/gpu")
@pytest.mark.parametrize(("name", "first"), [
    ("a100_nccl_data", None), ("a100_negative_queue", None), ("mi300_resnet_act_checkpoint", None),
    ("b200_eager_vllm", [(18, 50), (35, 24)])])  # 36 layers, two by two alike
def test_in_other_traces_of_gpus_as_well(name, first):
    rows = check_file(GPU / f"{name}.json.gz")
    assert first is None or [(row["calls"], row["length"]) for row in rows[:2]] == first


LAYERS = [[(name, 7) for name in ("gemm", *("add", "mul", "gemm") * 2, "mul", "mul")]] * 2


def test_a_sequence_is_shown_with_its_operators(tmp_path):
    done = called("ops", "--sequences", folder(tmp_path, *(trace(LAYERS)[0] for _ in range(2))))
    assert done.returncode == 0, done.stderr
    assert "36 kernels, copies and fills of 2 ranks; sequences of 2 to 64" in done.stdout
    assert "0-1" in done.stdout and "aten::gemm" in done.stdout and "mul x 2" in done.stdout


def test_those_of_calls_of_an_operator_lie_in_one_call(tmp_path):
    events = [launch(name, 20 * number, 20 * number + 3, 5, number=number + 1)
              for number, name in enumerate(("add", "mul") * 3)]
    outer = [op("aten::layer", 40 * number - 1, 30) for number in range(3)]  # around two of them
    path = folder(tmp_path, [event for each in [*events, outer] for event in each])
    rows = data("--op", "^aten::layer$", path)["sequences"]
    assert [([one["name"] for one in row["kernels"]], row["calls"]) for row in rows] == [(["add", "mul"], 3)]
    assert data("--op", "^aten::add$", path)["sequences"] == []  # each launches one kernel
    assert "of them that recur on one stream: 0" in called("ops", "--sequences", "--op", "nothing", path).stdout


def test_order_and_number(tmp_path):
    path = folder(tmp_path, trace(LAYERS)[0])
    for sort, column in (("calls", "calls"), ("kernels", "length"), ("gap_ns", "gap_ns"), ("device_ns", "device_ns")):
        values = [row[column] for row in data("--sort", sort, path)["sequences"]]
        assert values == sorted(values, reverse=True) and len(values) > 1
    found = data("--top", 1, "--longest", 40, path)
    assert len(found["sequences"]) == 1 < found["num_sequences"] and found["longest"] == 40


def test_collectives_alone_are_none_but_may_be_in_one(tmp_path):
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    kernels = [(name, 7), (name, 7), ("add", 7), (name, 20), (name, 20)] * 2
    events = [op(what, 10 * number, 5, cat="kernel", tid=stream) | {"pid": 0}
              for number, (what, stream) in enumerate(kernels)]
    rows = data(folder(tmp_path, events))["sequences"]
    assert [[one["name"] for one in row["kernels"]] for row in rows] == [[name, name, "add"]]


@pytest.mark.parametrize(("flags", "told"), [
    (("--longest", 3), "--longest needs --sequences"), (("--sequences", "--csv"), "can be combined only with"),
    (("--sequences", "--by", "op"), "can be combined only with"), (("--sequences", "--sort", "flops"), "device_ns"),
    (("--sequences", "--rank", 4), "--rank 4 is not in this run"), (("--sequences", "--longest", 1), "x>=2")])
def test_what_cannot_be_is_refused(tmp_path, flags, told):
    done = called("ops", *flags, folder(tmp_path, trace(LAYERS)[0]))
    assert done.returncode == 2 and told in done.stderr


def test_a_run_without_a_gpu_has_none(tmp_path):
    done = called("ops", "--sequences", folder(tmp_path, [op("aten::mm", 0, 10)]))
    assert done.returncode == 1 and "no kernels" in done.stderr and "hint: " in done.stderr


def test_modules_are_told_in_few_words():
    assert common_path(["0.norm", None, "0.attention"]) == "0" and common_path([None]) is None
    assert common_path(["0", "1"]) == "" and common_path(["0.norm"]) == "0.norm"
    assert pattern_of(["layers.0.norm", "layers.1.norm", "layers.0"]) == "layers.*.norm, layers.0"
    assert pattern_of([]) == "-" and pattern_of([""]) == "(root)"
