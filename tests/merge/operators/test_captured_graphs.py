"""Kernels of replayed graphs belong to the operators that launched them in the capture, if that is certain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.jobs import called
from support.made_up_traces import folder, op

Event = dict[str, Any]
SHAPES = {"Input type": ["float", "float"], "Input Dims": [[8, 4], [4, 2]], "Input Strides": [[4, 1], [2, 1]],
          "Concrete Inputs": ["", ""]}
FLOPS, BYTES = 2 * 8 * 4 * 2, 4 * (32 + 8 + 16)
LAYERS = "layers.0", "layers.1"
PRODUCT_US, RELU_US = 7.0, 3.0


def capture(at: float, layer: str, *, names: bool, kernels: int = 1) -> list[Event]:
    """A layer with a product and an activation, captured; each launches so many kernels."""
    def launch(ts: float, number: int, kernel: str) -> Event:
        return op("hipLaunchKernel" if names else "cudaLaunchKernel", ts, 1, cat="cuda_runtime",
                  correlation=int(at) + number, **({"kernel": kernel} if names else {}))

    return [
        op("cudaStreamBeginCapture_v2", at, 1, cat="cuda_runtime", correlation=int(at)),
        op(f"{layer} [Layer]", at + 2, 50 + kernels, cat="user_annotation"),
        op("aten::linear", at + 3, 20, **{"Input type": []}), op("aten::mm", at + 4, 5, **SHAPES),
        launch(at + 5, 1, "gemm"), op("aten::relu", at + 30, 3 + kernels, **{"Input type": ["float"]}),
        *(launch(at + 31 + place, 2 + place, "relu_kernel") for place in range(kernels)),
        op("cudaStreamEndCapture", at + 60 + kernels, 1, cat="cuda_runtime", correlation=int(at) + 999)]


def replay(at: float, number: int, *, kernels: int = 1, first: str = "gemm", late: float = 500.0) -> list[Event]:
    """The graph runs on the device some time after its launch."""
    def kernel(ts: float, dur: float, name: str) -> Event:
        return op(name, at + late + ts, dur, tid=7, cat="kernel", correlation=number, stream=7, device=0)

    return [op("cudaGraphLaunch", at, 9, cat="cuda_runtime", correlation=number), kernel(0, PRODUCT_US, first),
            *(kernel(10 + 4 * place, RELU_US, "relu_kernel") for place in range(kernels))]


def steps(number: int) -> list[Event]:
    return [op(f"ProfilerStep#{step}", 1_000_000 + 1000 * step, 1000, cat="user_annotation") for step in range(number)]


def at_step(step: int) -> float:
    return 1_000_000 + 1000 * step + 10


def shown(run: Path, *args: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(called("ops", "--json", *args, run).stdout)
    return found


def captured_in(path: Path, events: list[Event]) -> Path:
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.mark.parametrize("names", [True, False])
def test_kernels_of_replays_belong_to_captured_operators(tmp_path, names):
    run = folder(tmp_path, [*steps(4), *replay(at_step(1), 71), *replay(at_step(2), 72)])
    trace = captured_in(tmp_path / "capture", capture(5000, "layers.0", names=names))
    found = shown(run, "--captured", trace)
    assert found["graphs"] == {"replays": 2, "with_capture": 2}
    rows = {row["op"]: row for row in found["ops"]}
    product, relu = rows["aten::mm"], rows["aten::relu"]
    assert (product["calls"], product["self_device_ns"], product["flops"], product["bytes"]) == (
        2, 2 * PRODUCT_US * 1e3, 2 * FLOPS, 2 * BYTES)
    assert (relu["calls"], relu["self_device_ns"]) == (2, 2 * RELU_US * 1e3)
    assert (product["mean_ns"], product["max_ns"]) == (PRODUCT_US * 1e3,) * 2
    assert rows["aten::linear"]["device_ns"] == 2 * PRODUCT_US * 1e3
    assert {name: rows[name]["host_ns"] for name in ("aten::mm", "aten::relu", "aten::linear")} == {
        "aten::mm": 0, "aten::relu": 0, "aten::linear": 0}
    assert rows["cudaGraphLaunch"]["host_ns"] == 2 * 9e3 and not rows["cudaGraphLaunch"]["self_device_ns"]
    kernels = {row["op"]: row for row in shown(run, "--captured", trace, "--type", "kernel", "--by", "op",
                                              "--by", "module", "--by", "step", "--by", "category")["ops"]}
    assert (kernels["gemm"]["module"], kernels["gemm"]["category"]) == ("layers.0", "matrix product")
    steps_of = {(row["op"], row["step"]) for row in shown(run, "--captured", trace, "--type", "kernel", "--by", "op",
                                                          "--by", "step")["ops"]}
    assert steps_of == {(name, step) for name in ("gemm", "relu_kernel") for step in (1, 2)}


def test_without_the_capture_kernels_are_those_of_the_launch(tmp_path):
    run = folder(tmp_path, [*steps(3), *replay(at_step(1), 71)])
    found = shown(run)
    assert found["graphs"] == {"replays": 1, "with_capture": 0}
    assert {row["op"] for row in found["ops"]} >= {"gemm", "relu_kernel", "cudaGraphLaunch"}


def test_a_graph_that_is_captured_in_the_same_trace_needs_no_other(tmp_path):
    run = folder(tmp_path, [*capture(5000, "layers.0", names=False), *steps(3), *replay(at_step(1), 71)])
    rows = {row["op"]: row for row in shown(run, "--by", "op", "--step", 1)["ops"]}
    assert rows["aten::mm"]["self_device_ns"] == PRODUCT_US * 1e3
    assert "the capture of 1 of 1 replay of a graph is known" in called("ops", run).stdout


def test_layers_that_are_alike_take_turns(tmp_path):
    events = [event for step in (1, 2) for place in range(2)
              for event in replay(at_step(step) + 50 * place, 10 * step + place)]
    run = folder(tmp_path, [*steps(4), *events])
    trace = captured_in(tmp_path / "capture", [
        event for place, layer in enumerate(LAYERS) for event in capture(5000 + 2000 * place, layer, names=True)])
    rows = shown(run, "--captured", trace, "--type", "kernel", "--op", "gemm", "--by", "module", "--by", "step")["ops"]
    assert {(row["module"], row["step"], row["calls"]) for row in rows} == {
        (layer, step, 1) for layer in LAYERS for step in (1, 2)}


@pytest.mark.parametrize(("given", "names", "fits"), [
    ({"first": "another gemm"}, True, False), ({"first": "another gemm"}, False, True),
    ({"kernels": 2}, True, False), ({"kernels": 2}, False, False)])
def test_what_does_not_fit_is_left_alone(tmp_path, given, names, fits):
    run = folder(tmp_path, [*steps(3), *replay(at_step(1), 71, **given)])
    trace = captured_in(tmp_path / "capture", capture(5000, "layers.0", names=names))
    assert shown(run, "--captured", trace)["graphs"] == {"replays": 1, "with_capture": int(fits)}
    assert ("no capture fits the 1 replay" in called("ops", "--captured", trace, run).stdout) is not fits


def test_unlike_captures_that_fit_alike_are_not_guessed(tmp_path):
    """Without names of kernels, nothing tells which of two graphs with two kernels was replayed."""
    other = [event | {"name": "aten::gelu"} if event["name"] == "aten::relu" else event
             for event in capture(9000, "layers.1", names=False)]
    run = folder(tmp_path, [*steps(3), *replay(at_step(1), 71)])
    trace = captured_in(tmp_path / "capture", [*capture(5000, "layers.0", names=False), *other])
    assert shown(run, "--captured", trace)["graphs"]["with_capture"] == 0


@pytest.mark.parametrize(("kernels", "found"), [(["gemm"] * 6, 1), (["gemm", "relu", "add"] * 2, 0)])
def test_without_names_calls_that_are_alike_have_the_same_kernel(tmp_path, kernels, found):
    events = [op("cudaStreamBeginCapture", 5000, 1, cat="cuda_runtime", correlation=1)]
    for place in range(len(kernels)):
        events += [op("aten::mm", 5010 + 10 * place, 5, **SHAPES), op("cudaLaunchKernel", 5011 + 10 * place, 1,
                                                                     cat="cuda_runtime", correlation=2 + place)]
    events.append(op("cudaStreamEndCapture", 5500, 1, cat="cuda_runtime", correlation=90))
    launch, *_ = replay(at_step(1), 71)
    run = folder(tmp_path, [*steps(3), launch, *(
        op(name, at_step(1) + 500 + 10 * place, 5, tid=7, cat="kernel", correlation=71, stream=7, device=0)
        for place, name in enumerate(kernels))])
    assert shown(run, "--captured", captured_in(tmp_path / "capture", events))["graphs"]["with_capture"] == found


@pytest.mark.parametrize(("names", "lost", "found"), [(True, 1, 1), (False, 1, 0), (True, 3, 0)])
def test_the_last_of_many_named_kernels_may_be_lost(tmp_path, names, lost, found):
    run = folder(tmp_path, [*steps(3), *replay(at_step(1), 71, kernels=150 - lost)])
    trace = captured_in(tmp_path / "capture", capture(5000, "layers.0", names=names, kernels=150))
    assert shown(run, "--captured", trace)["graphs"]["with_capture"] == found


def test_what_is_no_capture_is_an_error(tmp_path):
    run = folder(tmp_path, [*steps(3), *replay(at_step(1), 71)])
    trace = captured_in(tmp_path / "other", steps(2))
    failed = called("ops", "--captured", trace, run)
    assert failed.returncode == 1 and "has no capture of a graph" in failed.stderr and "hint:" in failed.stderr
    assert called("ops", "--captured", trace, "--sequences", run).returncode == 2


def test_kernels_without_a_captured_module_keep_that_of_the_launch(tmp_path):
    run = folder(tmp_path, [*steps(3), op("nn.Module: Runner_0", at_step(1) - 5, 100, cat="python_function"),
                            *replay(at_step(1), 71)])
    events = [event for event in capture(5000, "layers.0", names=True) if "[Layer]" not in event["name"]]
    found = shown(run, "--captured", captured_in(tmp_path / "capture", events), "--by", "op", "--by", "module",
                  "--type", "kernel")["ops"]
    assert {(row["op"], row["module"]) for row in found} == {("gemm", "Runner_0"), ("relu_kernel", "Runner_0")}


def test_calls_of_captured_and_ordinary_operators_have_one_mean(tmp_path):
    eager = [op("aten::mm", at_step(2), 20, **SHAPES)]
    run = folder(tmp_path, [*capture(5000, "layers.0", names=False), *steps(4), *replay(at_step(1), 71), *eager])
    row, = shown(run, "--op", "aten::mm")["ops"]
    lasts = [5.0, PRODUCT_US, 20.0]  # while it was captured, in the replay, and in step 2
    assert (row["calls"], row["mean_ns"], row["min_ns"], row["max_ns"]) == (
        3, pytest.approx(sum(lasts) / 3 * 1e3), min(lasts) * 1e3, max(lasts) * 1e3)
    assert shown(run, "--op", "cudaLaunchKernel")["ops"][0]["calls"] == 2, "those of the capture"


def test_a_replay_at_the_end_of_its_step_stays_in_it(tmp_path):
    run = folder(tmp_path, [*steps(3), *replay(at_step(2) - 10.1, 71, kernels=100)])
    trace = captured_in(tmp_path / "capture", capture(5000, "layers.0", names=True, kernels=100))
    found = shown(run, "--captured", trace, "--by", "step", "--by", "type")["ops"]
    assert {row["step"] for row in found if row["self_device_ns"]} == {1}


def test_names_in_the_same_trace_must_be_those_of_the_replay(tmp_path):
    run = folder(tmp_path, [*capture(5000, "layers.0", names=True), *steps(3), *replay(at_step(1), 71, first="other")])
    assert shown(run)["graphs"] == {"replays": 1, "with_capture": 0}


def test_several_streams_need_names(tmp_path):
    events = replay(at_step(1), 71)
    events[-1] |= {"tid": 8}
    run = folder(tmp_path, [*steps(3), *events])
    for names in (True, False):
        trace = captured_in(tmp_path / f"capture{names}", capture(5000, "layers.0", names=names))
        assert shown(run, "--captured", trace)["graphs"]["with_capture"] == int(names)


def test_captures_of_other_shapes_are_not_mixed(tmp_path):
    run = folder(tmp_path, [*steps(4), *replay(at_step(1), 71), *replay(at_step(2), 72)])
    larger = [event | {"args": {**event["args"], "Input Dims": [[16, 4], [4, 2]]}} if event["name"] == "aten::mm" else
              event for event in capture(9000, "layers.0", names=True)]
    trace = captured_in(tmp_path / "capture", [*capture(5000, "layers.0", names=True), *larger])
    assert shown(run, "--captured", trace)["graphs"]["with_capture"] == 0


def test_a_merge_knows_its_replays(tmp_path):
    run = folder(tmp_path, [*capture(5000, "layers.0", names=False), *steps(3), *replay(at_step(1), 71)])
    before = shown(run)
    assert called("merge", "--operators", run).returncode == 0
    assert shown(run) == before and before["graphs"] == {"replays": 1, "with_capture": 1}
