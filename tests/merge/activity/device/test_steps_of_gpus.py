"""Steps of GPUs in traces of real ones, beside plain interval arithmetic; and what `comms` and `waits` say of them."""

from __future__ import annotations

import json

import pytest

from support.device_arithmetic import Trace, slices_of
from support.jobs import ROOT, called

GPU = ROOT.parent / "shared" / "traces" / "gpu"
NAMES = ("a100_nccl_data", "a100_negative_queue", "mi300_resnet_act_checkpoint")
needs_gpu_traces = pytest.mark.skipif(not GPU.is_dir(), reason="needs the traces of ../shared/traces/gpu")


def devices(command, path, *flags):
    done = called(command, "--json", *flags, path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["devices"]


@pytest.mark.long
@needs_gpu_traces
@pytest.mark.parametrize("name", NAMES)
def test_parts_and_causes_are_those_of_plain_arithmetic(name):
    path = GPU / f"{name}.json.gz"
    trace = Trace(slices_of(path))
    parts, causes = trace.parts(), trace.causes()
    shown = {row["step"]: row for row in devices("comms", path)["by_step"]}
    assert set(shown) == set(sorted(parts)[1:])
    alone = min(parts)
    for number, row in {**shown, alone: devices("waits", path, "--step", alone)["by_step"][0]}.items():
        mine = {"step": row["device_step_ns"], "compute": row["compute_ns"], "copies": row["copies_ns"],
                "exposed": row["waiting_ns"] + row["moving_ns"], "idle": row["idle_ns"]}
        assert mine == pytest.approx({one: 1e3 * us for one, us in parts[number].items()}, rel=1e-4, abs=3000)
        assert {one: row[f"{one}_idle_ns"] for one in causes[number]} == pytest.approx(
            {one: 1e3 * us for one, us in causes[number].items()}, rel=1e-4, abs=3000)
        assert row["device_step_ns"] == sum(row[f"{part}_ns"] for part in (
            "compute", "waiting", "moving", "copies", "idle"))
        assert row["idle_ns"] == sum(value for one, value in row.items() if one.endswith("_idle_ns"))
        assert row["is_whole"] == (number != max(parts))


@pytest.mark.long
@needs_gpu_traces
def test_the_step_of_an_mi300_that_lags_behind_its_host():
    path = GPU / "mi300_resnet_act_checkpoint.json.gz"
    first = devices("waits", path, "--step", 15)
    row = first["by_step"][0]
    assert row["device_step_ns"] / 1e6 == pytest.approx(18.98, rel=1e-3)
    assert row["commands"] == 895
    assert (row["device_step_ns"] - row["compute_ns"] - row["copies_ns"] - row["idle_ns"]) / row[
        "device_step_ns"] == pytest.approx(0.626, rel=1e-3)
    assert first["in_no_step"] == [{"rank": 0, "device": "2", "unsent": 968, "unsent_ns": 31_834_405, "outside": 0,
                                    "outside_ns": 0, "early": 0, "early_ns": 0, "lost": 0, "launches": 2238}]
    alone = called("comms", "--step", 15, path).stdout
    assert next(line for line in alone.splitlines() if line.startswith("rank 0  ")).split()[2:11] == [
        "18.98", "6.43", "33.9", "%", "0.00", "0.0", "%", "11.89", "62.6"]
    text = called("comms", path).stdout
    assert "device step in ms" in text and "in no step: 968 commands (31.83 ms) whose launch is unknown" in text
    assert "15.92" not in text and "72.4 %" not in text  # of the host's step, while the device works on an earlier one


@pytest.mark.long
@needs_gpu_traces
def test_kernels_of_an_mi300_without_a_launch_are_in_none_of_three_steps():
    path = GPU / "mi300_resnet_act_checkpoint.json.gz"
    found = json.loads(called("ops", "--type", "kernel", "--json", path).stdout)
    calls = {row["op"]: row["calls"] for row in found["ops"] if "batch_norm_backward_kernel" in (row["op"] or "")}
    assert list(calls.values()) == [60]
    assert found["left_out"]["commands_in_no_step"] == 968 and found["left_out"]["in_no_step_ns"] == 31_834_405
    text = called("ops", "--type", "kernel", path).stdout
    assert "not counted: 968 device commands (31.83 ms) outside all steps" in text


@pytest.mark.long
@needs_gpu_traces
def test_means_of_an_a100_have_what_its_optimizer_launched():
    found = devices("comms", GPU / "a100_nccl_data.json.gz")["steps"][0]
    assert (found["first_step"], found["last_step"], found["num_open"]) == (5, 6, 1)
    assert (found["waiting_ns"] + found["moving_ns"]) / 1e6 == pytest.approx(14.70, rel=1e-3)
    assert found["compute_ns"] / 1e6 == pytest.approx(38.57, rel=1e-3)


@pytest.mark.long
@needs_gpu_traces
def test_an_idle_a100_with_full_queues_does_not_wait_for_its_host():
    path = GPU / "a100_negative_queue.json.gz"
    found = [devices(command, path) for command in ("comms", "waits")]
    mean = found[0]["steps"][0]
    assert (mean["first_step"], mean["last_step"], mean["num_open"]) == (551, 553, 0)
    assert mean["idle_ns"] / mean["device_step_ns"] == pytest.approx(0.638, rel=1e-3)
    assert mean["host_idle_ns"] / mean["device_step_ns"] < 0.02
    assert mean["unshown_idle_ns"] / mean["idle_ns"] > 0.95  # full queues, and nothing that the streams could wait for
    assert mean["in_graph_ns"] / mean["unshown_idle_ns"] > 0.9
    assert found[1]["steps"] == found[0]["steps"] and found[1]["streams"] == found[0]["streams"]


@pytest.mark.long
@needs_gpu_traces
def test_a_trace_without_steps_is_one_from_its_first_command_to_its_last():
    path = GPU / "b200_eager_vllm.json.gz"
    marks = {0: [0, float("inf")]}
    trace = Trace(slices_of(path), marks, communicates=("nccl", "multimem_all_reduce"))
    trace.marks = {0: [0, max(one["ts"] for one in trace.device)]}
    expected = trace.parts()[0]
    mine = devices("waits", path)["by_step"][0]
    assert mine["device_step_ns"] == pytest.approx(1e3 * expected["step"], abs=2000)
    assert mine["compute_ns"] == pytest.approx(1e3 * expected["compute"], abs=2000)
    assert mine["moving_ns"] == pytest.approx(1e3 * expected["exposed"], abs=2000)
    assert not mine["is_whole"]


@pytest.mark.long
@needs_gpu_traces
@pytest.mark.parametrize("name", NAMES)
def test_comms_waits_and_the_report_say_the_same(name):
    path = GPU / f"{name}.json.gz"
    comms, waits = (devices(command, path)["steps"][0] for command in ("comms", "waits"))
    report = json.loads(called("report", "--json", path).stdout)
    parts = report["step_parts"]
    assert waits == comms and parts["source"] == "device"
    assert parts["mean"]["duration_ns"] == comms["device_step_ns"]
    assert {part: parts["mean"][part] for part in parts["parts"]} == {part: comms[part] for part in parts["parts"]}
    assert sum(parts["mean"][part] for part in parts["parts"]) == pytest.approx(comms["device_step_ns"])
    assert report["communication"]["of_device"] and report["communication"]["exposed_ratio"] == pytest.approx(
        (comms["waiting_ns"] + comms["moving_ns"]) / comms["device_step_ns"])
    late = next((one["text"] for one in report["findings"] if "the device waits for the host" in one["text"]), None)
    assert (late is not None) == (name == "a100_nccl_data")  # the others have full queues, or never idle
