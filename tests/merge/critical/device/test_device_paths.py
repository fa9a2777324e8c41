"""`critical-path` of one GPU: simulated jobs, real traces beside plain arithmetic, and where nothing is said."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from distprof.merge.critical.device.walk import KINDS
from distprof.merge.report.document import document
from distprof.merge.report.section import rows_of
from support.device_arithmetic import Trace, slices_of
from support.jobs import ROOT, called
from support.made_up_traces import folder, op
from support.simulator.device_job import DeviceJob, Slow

GPU = ROOT.parent / "shared" / "traces" / "gpu"
needs_gpu_traces = pytest.mark.skipif(not GPU.is_dir(), reason="needs the traces of ../shared/traces/gpu")
KERNEL_NS, SLOW_NS = 1_500_000, 20_000_000


def path_of(run, *flags):
    done = called("critical-path", "--json", *flags, run)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["through"] == "device"
    return found


def module(found, phase, name):
    return next((row for row in found["by_module"] if (row["phase"], row["module"]) == (phase, name)), None)


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    return DeviceJob(num_ranks=1, noise=0).write(tmp_path_factory.mktemp("even") / "run")


def test_a_device_that_is_busy_is_the_path(even):
    """Forward takes 1.5 ms a layer, backward twice as long; the host waits at the end of each step."""
    found = path_of(even)
    assert found["by_kind"]["kernels"] == 4 * 3 * KERNEL_NS + 300_000
    assert found["by_kind"]["host"] == pytest.approx(218_000, abs=20_000)  # loads, and goes on behind loss.item()
    assert module(found, "forward", "layers.2")["device_ns"] == KERNEL_NS
    assert module(found, "backward", "layers.2")["device_ns"] == 2 * KERNEL_NS
    assert module(found, "data", None)["host_ns"] == 200_000
    off = {row["op"][:8]: row for row in found["off_path"]}
    assert set(off) == {"ncclDevK"} and off["ncclDevK"]["calls"] >= 3
    row = found["by_rank"][0]
    assert row["time_ns"] == pytest.approx(sum(row[f"{kind}_ns"] for kind in KINDS))


@pytest.mark.long
@pytest.mark.parametrize(("slow", "phase", "where", "part"), [
    (Slow(0, "data", None, SLOW_NS), "data", None, "host_ns"),
    (Slow(0, "backward", 1, SLOW_NS), "backward", "layers.1", "device_ns")])
def test_what_takes_longer_is_longer_on_the_path(even, tmp_path, slow, phase, where, part):
    found, usual = path_of(DeviceJob(num_ranks=1, noise=0, slow=[slow]).write(tmp_path / "run")), path_of(even)
    assert found["duration_ns"] - usual["duration_ns"] == SLOW_NS
    assert module(found, phase, where)[part] - module(usual, phase, where)[part] == SLOW_NS


def test_the_screen_names_kernels_modules_and_what_is_hidden(even):
    text = called("critical-path", even).stdout
    assert "critical path of the device: " in text and "gemm_grad_2" in text and "layers.3" in text
    assert "of the host's work" in text and "step 0 is skipped: the profiler was warming up" in text


@pytest.mark.long
def test_one_rank_of_several_is_looked_at_alone(tmp_path):
    run = DeviceJob(num_ranks=2, noise=0, overlaps=False).write(tmp_path / "run")
    whole = json.loads(called("critical-path", "--json", run).stdout)
    assert "through" not in whole and {row["rank"] for row in whole["by_rank"]} <= {0, 1}
    assert [row["rank"] for row in path_of(run, "--rank", 1)["by_rank"]] == [1]
    assert "without --rank" in called("critical-path", "--rank", 1, run).stdout
    refused = called("critical-path", "--rank", 7, run)
    assert refused.returncode == 2 and "no rank 7; --rank can be 0-1" in refused.stderr


def test_the_report_has_the_same_path(even):
    found, mine = path_of(even), document(even)["critical_path"]
    assert {key: mine[key] for key in ("through", "duration_ns", "by_kind")} == {
        key: found[key] for key in ("through", "duration_ns", "by_kind")}
    for name in ("by_rank", "by_module", "by_op"):
        assert rows_of(mine[name]) == found[name][:30]


@pytest.mark.long
def test_chains_are_listed_link_by_link(even):
    found = path_of(even, "--step", 3)
    links, step = found["chain"], found["steps"][0]
    assert (links[0]["start_ns"], links[-1]["end_ns"]) == (step["start_ns"], step["end_ns"])
    assert all(one["end_ns"] == two["start_ns"] for one, two in pairwise(links))
    assert called("critical-path", "--step", 99, even).returncode == 2


def test_nothing_is_said_where_launches_are_missing(tmp_path):
    def trace(*, launched):
        for number in range(12):
            yield op("ProfilerStep#" + str(number // 4), 4000 * (number // 4), 4000, cat="user_annotation")
            at = 1000 * number
            yield op("cudaLaunchKernel", at + 10, 8, cat="cuda_runtime", correlation=number + 1)
            known = number + 1 if launched or number % 3 == 0 else number + 1001
            yield op("kernel", at + 30, 500, tid=7, cat="kernel", correlation=known)

    assert called("critical-path", folder(tmp_path, [*trace(launched=True)])).returncode == 0
    failed = called("critical-path", folder(tmp_path, [*trace(launched=False)]))
    assert failed.returncode != 0 and "what the device waited for is unknown" in failed.stderr
    assert document(tmp_path)["absent"]["critical_path"].startswith("no critical path: too many launches")


@pytest.mark.long
@needs_gpu_traces
@pytest.mark.parametrize("name", ["a100_nccl_data", "a100_negative_queue", "mi300_resnet_act_checkpoint"])
def test_parts_add_up_to_the_device_steps_of_plain_arithmetic(name):
    path = GPU / f"{name}.json.gz"
    steps, found = Trace(slices_of(path)).steps(), path_of(path)
    counted = [row["step"] for row in found["steps"]]
    assert set(counted) <= set(steps)
    lengths = {row["step"]: row["duration_ns"] for row in found["steps"]}
    assert lengths == pytest.approx({one: 1e3 * (steps[one][1] - steps[one][0]) for one in counted}, abs=3000)
    assert sum(found["by_kind"].values()) == pytest.approx(found["duration_ns"])
    assert sum(row["time_ns"] for row in found["by_module"]) == pytest.approx(found["duration_ns"])


@pytest.mark.long
@needs_gpu_traces
def test_a_host_that_waits_for_room_in_a_full_queue_is_not_the_path():
    """Its longest launches, of up to 7 ms, find 966 commands or more in the queue; 64 % of a step no kernel runs."""
    found = path_of(GPU / "a100_negative_queue.json.gz")
    step_ns, kinds = found["duration_ns"], found["by_kind"]
    assert kinds["host"] < 0.07 * step_ns and kinds["unshown"] == pytest.approx(0.63 * step_ns, rel=0.03)
    assert not any(row["name"] == "cudaLaunchKernel" and row["time_ns"] > 1e6 for row in found["calls"])


@pytest.mark.long
@needs_gpu_traces
def test_a_host_bound_job_is_followed_through_the_thread_of_autograd():
    """HTA finds 101 of 220 ms, as it does not follow the thread that runs backward."""
    found = path_of(GPU / "a100_nccl_data.json.gz")
    assert found["by_kind"]["host"] >= 0.99 * found["duration_ns"]
    phases = {}
    for row in found["by_module"]:
        phases[row["phase"]] = phases.get(row["phase"], 0) + row["time_ns"] / 1e6
    assert phases["backward"] == pytest.approx(102, abs=4) and phases["forward"] == pytest.approx(102, abs=4)
