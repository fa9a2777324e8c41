"""What `comms` and `stats` say about steps of devices."""

from __future__ import annotations

import json

import polars as pl
import pytest

from distprof.merge.activity.device.rank_device import FRAMES, NO_DEVICES, DeviceSteps
from distprof.merge.activity.device.steps import CAUSES, SCHEMA
from distprof.merge.text.communication.device_steps import (
    idle_lines,
    idle_words,
    show_device_steps,
    without_profiler,
)
from distprof.merge.totals.step_time import StepTime
from distprof.reporters.page import Page
from support.jobs import called
from support.made_up_traces import folder, op


def launched(ts, dur, correlation, *, device=1, name="kernel", at=None):
    """A kernel, and the call that launched it."""
    begun = ts - 8 if at is None else at
    return [op("cudaLaunchKernel", begun, 4, cat="cuda_runtime", correlation=correlation),
            {**op(name, ts, dur, tid=7, cat="kernel", correlation=correlation), "pid": device}]


def marked(number, start, end):
    return op(f"ProfilerStep#{number}", start, end - start, cat="user_annotation")


def job(*, shift=0, devices=(1,), name="ncclDevKernel_AllReduce_Sum_f32"):
    """Four steps of 1 ms; in each, a kernel of 300 us, and one that communicates for 100 us from 200 us on."""
    events = [marked(number, 1000 * number, 1000 * number + 1000) for number in range(4)]
    for number in range(4):
        for place, device in enumerate(devices):
            at = 1000 * number + 50 + 20 * place
            first = 1 + 100 * number + 10 * place
            events += [*launched(at, 300 + shift, first, device=device),
                       *launched(at + 250, 100, first + 1, device=device, name=name, at=at - 5)]
    return events


def test_each_rank_has_a_row_and_their_mean(tmp_path):
    text = called("comms", folder(tmp_path, job(), job(shift=100))).stdout
    row, other, mean = (next(line for line in text.splitlines() if line.startswith(name)).split()
                        for name in ("rank 0", "rank 1", "mean of 2"))
    assert row[2:5] == ["1.00", "0.30", "30.0"] and other[2:5] == ["1.00", "0.40", "40.0"]
    assert mean[3:6] == ["1.00", "0.35", "35.0"]


@pytest.mark.long
def test_devices_of_one_process_are_told_apart(tmp_path):
    run = folder(tmp_path, job(devices=(0, 3)))
    text = called("comms", run).stdout
    assert "rank 0 device 0" in text and "rank 0 device 3" in text
    rows = json.loads(called("comms", "--json", run).stdout)["devices"]["steps"]
    assert [row["device"] for row in rows] == ["0", "3"]


@pytest.mark.long
def test_of_many_ranks_some_have_a_row(tmp_path):
    text = called("comms", folder(tmp_path, *(job(shift=10 * rank) for rank in range(20)))).stdout
    assert all(f"({why})" in text for why in ("slowest", "median", "fastest")) and "mean of 20" in text


@pytest.mark.long
def test_the_share_of_exposed_communication_is_that_of_the_device(tmp_path):
    (tmp_path / "run").mkdir()
    run = folder(tmp_path / "run", job(), job())
    data = json.loads(called("comms", "--json", run).stdout)
    row = data["devices"]["steps"][0]
    assert (row["communication_ns"], row["overlapped_ns"], row["waiting_ns"] + row["moving_ns"]) == (
        100_000, 50_000, 50_000)
    assert data["breakdown"] == []  # the host's steps are not mixed with the device's
    out = tmp_path / "merged"
    assert called("merge", "--collectives", run, "--out", out).returncode == 0
    summary = json.loads((out / "summary.json").read_text())["communication"]
    assert summary["of_device"] and abs(summary["exposed_ratio"] - 0.05) < 1e-9
    assert [one["rank"] for one in summary["devices"]] == [0, 1]


def test_exposed_communication_is_unknown_where_no_kernel_communicates(tmp_path):
    devices = DeviceSteps(**{**{name: getattr(NO_DEVICES, name) for name in FRAMES}, "steps": pl.DataFrame([{
        **{name: 0 for name, kind in SCHEMA.items() if kind == pl.Int64}, "device": "0", "is_whole": True,
        "is_marked": True, "device_step_ns": 10_000_000, "idle_ns": 10_000_000}], schema=SCHEMA)})
    page = Page()
    show_device_steps(devices, page, without_kernels=[0])
    row = next(line for line in page.text().splitlines() if line.startswith("rank 0")).split()
    assert row[2:10] == ["10.00", "0.00", "0.0", "%", "-", "-", "0.00", "0.0"]
    assert "rank 0 exchanges data with others, but no kernel communicates, as with gloo" in page.text()
    page = Page()
    show_device_steps(devices, page)
    assert "gloo" not in page.text()


def test_idle_time_in_words_names_what_matters_most_first():
    row = {"device_step_ns": 1e7, **{f"{cause}_idle_ns": 0 for cause in CAUSES}}
    assert idle_words([row]) == "device step 10.00 ms, 0.0 % idle"
    row |= {"latency_idle_ns": 1e6, "host_idle_ns": 3e6, "sync_idle_ns": 1e3}
    assert idle_words([row]) == "device step 10.00 ms, 40.0 % idle: host late 30.0 %, latency 10.0 %"


def test_what_no_slice_tells_is_not_left_out_beside_what_slices_tell():
    steps = [{"rank": 0, "device": "0", "step": 1, "is_whole": True, "device_step_ns": 1000, "is_marked": True}]
    doing = [{"rank": 0, "device": "0", "step": 1, "kind": kind, "where": None, "idle_ns": idle_ns}
             for kind, idle_ns in ((None, 700), ("backward", 20))]
    frames = {"steps": steps, "doing": doing}
    devices = DeviceSteps(**{name: pl.DataFrame(frames.get(name, []), schema=schema)
                             for name, schema in FRAMES.items()})
    first = next(idle_lines(devices))
    assert first.endswith("per step: unknown 700 ns (70.0 %), backward 20 ns (2.0 %)")


def usual(time_ns):
    return StepTime(time_ns=time_ns, low_ns=time_ns, high_ns=time_ns, num_steps=9, passes=["time"])


def test_a_step_time_that_the_work_of_the_device_does_not_fit_into_is_doubted():
    rows = pl.DataFrame({"device_step_ns": [3.1e6], "idle_ns": [0.3e6]})
    assert "without it, a step takes 3.00 ms" in without_profiler(rows, usual(3e6))
    doubted = without_profiler(rows, usual(444e3))
    assert "the device is busy for 2.80 ms of a step: the step time of 444.00 us is that of the host" in doubted


def test_commands_are_counted_though_none_has_a_launch(tmp_path):
    kernels = [op("kernel", 1000 * number + 20, 100, tid=7, cat="kernel") for number in range(3)]
    text = called("comms", folder(tmp_path, [*(marked(number, 1000 * number, 1000 * number + 1000)
                                               for number in range(3)), *kernels])).stdout
    assert "device steps are unknown; in no step: 3 commands (300.00 us) whose launch is unknown" in text
    assert "no collective was recorded\n" in text


@pytest.mark.long
def test_what_replays_of_devices_cannot_tell_is_said(tmp_path):
    run = folder(tmp_path, job(), job())
    for arguments in (("critical-path",), ("whatif", "--free-communication")):
        assert "a device and its host count as one chain of work" in called(*arguments, "--same-host", run).stdout


def test_stats_of_traces_shows_the_step_of_the_device(tmp_path):
    text = called("stats", folder(tmp_path, job(), job())).stdout
    assert "exposed communication: 5.0 % of a step of the device; how much of it" in text or (
        "% of a step of the device waiting for other ranks" in text)
    assert "device step 1.00 ms, 65.0 % idle" in text and "step and module times unknown" not in text


def test_kernels_that_look_like_communication_and_count_as_computing_are_named(tmp_path):
    run = folder(tmp_path, job(name="my_p2p_push<float>"), job(name="my_p2p_push<float>"))
    text = " ".join(called("comms", run).stdout.split())
    assert "look like communication, but count as computing: my_p2p_push<float> (8 calls, 800.00 us)" in text
    found = json.loads(called("comms", "--json", run).stdout)["devices"]["look_like_communication"]
    assert [(one["rank"], one["name"], one["calls"], one["time_ns"]) for one in found] == [
        (rank, "my_p2p_push<float>", 4, 400_000) for rank in range(2)]
    assert "look like communication" not in called("comms", folder(tmp_path, job())).stdout
