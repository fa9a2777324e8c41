"""Why a device is idle: made-up traces, each with a pause of known cause."""

from __future__ import annotations

import itertools
import json

import pytest

from support.jobs import called
from support.made_up_traces import folder, op

CAUSES = ("host", "sync", "stream", "latency", "unshown", "unsent", "unasked")


def call(ts, correlation, dur=5, name="cudaLaunchKernel", tid=1):
    return op(name, ts, dur, tid=tid, cat="cuda_runtime", correlation=correlation)


def kernel(ts, dur, correlation, tid=7, name="kernel"):
    return op(name, ts, dur, tid=tid, cat="kernel", correlation=correlation)


def copy(ts, dur, correlation, tid=7):
    return op("Memcpy DtoH (Device -> Pageable)", ts, dur, tid=tid, cat="gpu_memcpy", correlation=correlation)


def steps(*borders):
    return [op(f"ProfilerStep#{number}", start, end - start, cat="user_annotation")
            for number, (start, end) in enumerate(itertools.pairwise(borders))]


FIRST, NEXT = [call(10, 1), kernel(20, 100, 1)], [call(1010, 99), kernel(1020, 80, 99)]
"""A kernel from 20 to 120 in the first step, and the first one of the next, which is launched in it."""


def row_of(tmp_path, *events, borders=(0, 1000, 2000), step=0):
    run = folder(tmp_path, [*steps(*borders), *FIRST, *events, *NEXT])
    found = json.loads(called("waits", "--json", "--step", step, run).stdout)["devices"]
    assert found["by_step"], found
    return found["by_step"][0]


def causes(row):
    return {cause: row[f"{cause}_idle_ns"] // 1000 for cause in CAUSES if row[f"{cause}_idle_ns"]}


@pytest.mark.parametrize(("events", "expected"), [
    ([], {"host": 895, "latency": 5}),
    ([call(200, 2), kernel(212, 50, 2)], {"host": 85 + 753, "latency": 7 + 5}),
    ([call(30, 2), kernel(124, 50, 2)], {"latency": 4 + 5, "host": 841}),                # launched long before
    ([call(30, 2), kernel(320, 50, 2)], {"unshown": 200, "host": 645, "latency": 5}),    # nothing tells why
    ([call(30, 2), kernel(140, 50, 2, tid=8)], {"stream": 20, "host": 825, "latency": 5}),   # handed over
    ([call(30, 2), kernel(320, 50, 2, tid=8)], {"unshown": 200, "host": 645, "latency": 5}),  # too late for that
    ([kernel(320, 50, 2)], {"unsent": 200, "host": 645, "latency": 5}),
    ([call(40, 3, dur=110, name="cudaStreamSynchronize")], {"sync": 30, "host": 865, "latency": 5}),
    ([call(40, 3, dur=110, name="cudaStreamSynchronize_ptsz_v7000")], {"sync": 30, "host": 865, "latency": 5}),
    ([call(40, 3, dur=110, name="urQueueFinish")], {"sync": 30, "host": 865, "latency": 5}),
    ([call(30, 0), kernel(320, 50, 0)], {"unsent": 200, "host": 645, "latency": 5}),     # 0 is no id
    ([call(30, 2), call(40, 3), kernel(121, 10, 2), kernel(320, 50, 2)],                 # one of them is of call 3
     {"unsent": 1 + 189, "host": 645, "latency": 5}),
    ([call(40, 3, dur=110, name="cudaStreamSynchronize", tid=2)], {"host": 895, "latency": 5}),  # launches nothing
    ([call(30, 2, dur=120, name="cudaMemcpyAsync"), copy(125, 10, 2)],
     {"host": 5 + 865, "sync": 15, "latency": 5}),                                       # it returns behind its copy
], ids=lambda one: "-".join(one) if isinstance(one, dict) else "")
def test_a_pause_has_the_cause_of_the_command_that_ends_it(tmp_path, events, expected):
    row = row_of(tmp_path, *events)
    assert causes(row) == expected and row["idle_ns"] == 1000 * sum(expected.values())
    assert row["device_step_ns"] == 1_000_000 and row["is_whole"]


def test_the_last_step_ends_with_the_step_of_the_host_where_that_is_later(tmp_path):
    row = row_of(tmp_path, step=1)
    assert row["device_step_ns"] == 980_000 and not row["is_whole"]
    assert causes(row) == {"unasked": 900} and row["compute_ns"] == 80_000


def test_a_kernel_belongs_to_the_step_that_launched_it_wherever_it_runs(tmp_path):
    row = row_of(tmp_path, call(900, 2), kernel(1005, 10, 2))
    assert (row["commands"], row["device_step_ns"], row["compute_ns"]) == (2, 1_000_000, 110_000)
    late = row_of(tmp_path, call(900, 2), kernel(1005, 10, 2), step=1)
    assert late["commands"] == 1


@pytest.mark.parametrize("name", ["cudaGraphLaunch", "cudaGraphLaunch_v10000", "hipGraphLaunch"])
def test_kernels_of_a_graph_have_the_step_of_its_launch_and_their_gaps_are_told(tmp_path, name):
    graph = [call(30, 2, name=name), kernel(121, 10, 2), kernel(132, 10, 2), kernel(400, 10, 2)]
    row = row_of(tmp_path, *graph)
    assert row["commands"] == 4 and causes(row) == {"latency": 1 + 1 + 5, "unshown": 258, "host": 605}
    assert row["in_graph_ns"] == 258_000


def test_what_lies_behind_a_synchronisation_is_told(tmp_path):
    row = row_of(tmp_path, call(40, 3, dur=85, name="cudaDeviceSynchronize"))
    assert causes(row) == {"sync": 5, "host": 890, "latency": 5} and row["after_sync_ns"] == 890_000


def test_exposed_communication_copies_and_computing_do_not_overlap(tmp_path):
    row = row_of(tmp_path, call(30, 2), kernel(100, 100, 2, tid=9, name="ncclDevKernel_AllReduce_Sum_f32"),
                 call(50, 3), copy(150, 100, 3, tid=8))
    assert (row["compute_ns"], row["moving_ns"], row["copies_ns"]) == (100_000, 80_000, 50_000)
    assert (row["communication_ns"], row["overlapped_ns"]) == (100_000, 20_000)
    assert row["idle_ns"] == 770_000


def test_commands_before_the_first_step_and_without_a_launch_are_said(tmp_path):
    run = folder(tmp_path, [*steps(5, 1000, 2000), call(0, 7, dur=2), kernel(5, 3, 7), *FIRST, kernel(500, 10, 55),
                            *NEXT])
    found = json.loads(called("waits", "--json", run).stdout)["devices"]
    assert found["in_no_step"] == [{"rank": 0, "device": "1", "unsent": 1, "unsent_ns": 10_000, "outside": 1,
                                    "outside_ns": 3000, "early": 0, "early_ns": 0, "lost": 0,
                                    "launches": 3}]


CAPTURED = (call(199, 19, dur=1, name="cudaStreamBeginCapture_v10000"), call(290, 20, name="cudaStreamEndCapture"))


EIGHT = [call(200 + 10 * number, 21 + number) for number in range(8)]


@pytest.mark.parametrize(("events", "expected"), [
    ([], None),
    (EIGHT, "8 of 10 launches"),
    ([*EIGHT, kernel(500, 10, 77)], "at least 7 of 10 launches"),
    ([CAPTURED[0], *EIGHT, CAPTURED[1]], None),
    ([call(200, 20, name="cudaMemsetAsync")], None),       # of no bytes
], ids=["none", "lost", "one-is-there", "captured", "fill"])
def test_launches_whose_kernels_the_profiler_lost_are_told(tmp_path, events, expected):
    """As in pytorch/pytorch issue 192021 and ROCm/rocm-systems issue 1327."""
    run = folder(tmp_path, [*steps(0, 1000, 2000), *FIRST, *events, *NEXT])
    for command in ("comms", "waits"):
        said = [line for line in called(command, run).stdout.splitlines() if "left nothing in the timeline" in line]
        assert [line.split(" left")[0] for line in said] == ([expected] if expected else [])


def test_a_trace_that_lacks_all_that_devices_did_says_so(tmp_path):
    """As in ROCm/legacy-rocm-build issue 6102."""
    run = folder(tmp_path, [*steps(0, 1000, 2000), FIRST[0], *EIGHT, NEXT[0], call(500, 50, name="cudaMemsetAsync")])
    found = json.loads(called("comms", "--json", run).stdout)["devices"]
    assert [(one["device"], one["lost"], one["launches"]) for one in found["in_no_step"]] == [(None, 10, 10)]
    assert ("device steps are unknown; the profiler recorded nothing of a device, though the host launched 10 times"
            in called("comms", run).stdout)
    assert called("waits", run).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize(("by_us", "expected"), [(0, (0, 0)), (4, (0, 0)), (40, (2, 36_000))])
def test_a_device_whose_clock_is_ahead_is_told(tmp_path, by_us, expected):
    """FIRST begins 10 us behind its launch, NEXT as well; the one between 4 us."""
    between = [call(300, 3), kernel(304, 50, 3)]
    moved = [{**one, "ts": one["ts"] - by_us} if one["cat"] == "kernel" and one["ts"] > 100 else one
             for one in (*FIRST, *between, *NEXT)]
    run = folder(tmp_path, [*steps(0, 1000, 2000), *moved])
    for command in ("comms", "waits"):
        (found,) = json.loads(called(command, "--json", run).stdout)["devices"]["in_no_step"]
        assert (found["early"], found["early_ns"]) == expected
        assert ("2 commands began ahead of the launching call, by up to 36.00 us" in called(
            command, run).stdout) == bool(expected[0])


@pytest.mark.parametrize("broken", [{"ts": 0, "dur": 0}, {"dur": -300}])
def test_commands_without_times_are_left_out_and_said(tmp_path, broken):
    """As in pytorch/kineto issue 109."""
    epoch = 1.7e15
    events = [*steps(0, 1000, 2000), *FIRST, call(200, 2), kernel(210, 50, 2), *NEXT]
    events = [{**one, "ts": one["ts"] + epoch} for one in events] + [{**kernel(epoch + 300, 50, 2), **broken}]
    run = folder(tmp_path, events)
    for command in ("comms", "waits"):
        found = json.loads(called(command, "--json", "--step", 0, run).stdout)["devices"]["by_step"]
        assert [(row["device_step_ns"], row["compute_ns"]) for row in found] == [(1_000_000, 150_000)]
    assert "1 command of rank0.json left out: the profiler recorded impossible times" in called("comms", run).stdout
    rows = called("ops", "--type", "kernel", run).stdout
    assert "1 slice without usable times skipped" in rows and "230.00 us" in rows


def test_a_device_that_nothing_was_sent_to_in_steps_has_none(tmp_path):
    run = folder(tmp_path, [*steps(500, 900), call(10, 1), kernel(20, 100, 1)])
    text = called("waits", run)
    assert text.returncode == 0 and "idle in ms" not in text.stdout


def test_calls_that_the_host_is_in_while_it_is_late_are_told(tmp_path):
    run = folder(tmp_path, [*steps(0, 1000, 2000), *FIRST, call(300, 3, dur=200, name="cudaMalloc", tid=2), *NEXT])
    found = json.loads(called("comms", "--json", run).stdout)["devices"]
    assert [(one["name"], one["idle_ns"]) for one in found["calls_meanwhile"]] == [
        ("cudaMalloc", 100_000), ("cudaLaunchKernel", 2500)]  # mean of two steps
    text = called("comms", run).stdout
    assert "runtime calls that its threads are in meanwhile: cudaMalloc 100.00 us (10.1 %)" in text


def test_a_step_whose_next_one_was_not_recorded_does_not_last_until_one_far_behind(tmp_path):
    run = folder(tmp_path, [*steps(0, 1000, 2000), op("ProfilerStep#7", 90_000, 1000, cat="user_annotation"), *FIRST,
                            *NEXT, call(90_010, 7), kernel(90_020, 50, 7)])
    rows = json.loads(called("comms", "--json", "--step", 1, run).stdout)["devices"]["by_step"]
    assert [(row["device_step_ns"], row["is_whole"]) for row in rows] == [(980_000, False)]


def test_comms_shows_a_step_in_which_nothing_communicates(tmp_path):
    run = folder(tmp_path, [*steps(0, 1000, 2000), *FIRST, *NEXT])
    assert "step 0: from the first command" in called("comms", "--step", 0, run).stdout
    refused = called("comms", "--step", 5, run)
    assert refused.returncode == 2 and "no device works in it" in refused.stderr and "0-1" in refused.stderr


@pytest.mark.parametrize("category", ["xpu_runtime", "mtia_runtime", "privateuse1_driver"])
def test_calls_that_drive_other_devices_launch_their_commands(tmp_path, category):
    events = [{**one, "cat": category} if one["cat"] == "cuda_runtime" else one for one in (*FIRST, *NEXT)]
    run = folder(tmp_path, [*steps(0, 1000, 2000), *events])
    for command in ("comms", "waits"):
        row, _ = json.loads(called(command, "--json", run).stdout)["devices"]["by_step"]
        assert causes(row) == {"host": 895, "latency": 5}
    (ops,) = json.loads(called("ops", "--type", "runtime", "--json", run).stdout)["ops"]
    assert ops["calls"] == 2 and ops["device_ns"] == 180_000


@pytest.mark.long
def test_a_host_is_not_blamed_for_idle_time_that_lost_kernels_would_fill(tmp_path):
    run = folder(tmp_path, [*steps(0, 1000, 2000, 3000), *FIRST, *EIGHT, *NEXT, call(2010, 31), kernel(2020, 80, 31)])
    told = called("findings", run).stdout
    assert "8 of 11 launches left nothing in the timeline" in told and "waits for the host" not in told
    whole = folder(tmp_path, [*steps(0, 1000, 2000, 3000), *FIRST, *NEXT, call(2010, 31), kernel(2020, 80, 31)])
    assert "the device waits for the host" in called("findings", whole).stdout


def test_a_wait_for_a_device_of_intel_is_one_for_an_xpu(tmp_path):
    waiting = {**call(40, 3, dur=110, name="urQueueFinish"), "cat": "xpu_runtime"}
    run = folder(tmp_path, [*steps(0, 1000, 2000), *FIRST, waiting, *NEXT])
    (row,) = json.loads(called("waits", "--json", run).stdout)["waits"]
    assert (row["op"], row["device"], row["blocked_ns"]) == ("urQueueFinish", "xpu", 110_000)
