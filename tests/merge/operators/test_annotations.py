"""Device time of annotations, beside a sum over all kernels that any thread launched during them."""

import gzip
import json
from collections import Counter

import pytest

from support.jobs import called
from support.kineto_files import DLRM, needs_shared
from support.made_up_traces import folder, op

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def summed(events: list[dict]) -> Counter[str]:
    """Device time by annotation, in microseconds."""
    slices = [one for one in events if one.get("ph") == "X"]
    launched = {one["args"]["correlation"]: one["ts"] for one in slices if one.get("cat") in (
        "cuda_runtime", "cuda_driver") and "correlation" in one.get("args", {})}
    found = Counter[str]()
    for around in slices:
        if around.get("cat") == "user_annotation" and around["name"].startswith("##"):
            found[around["name"]] += sum(
                one["dur"] for one in slices if one.get("cat") in DEVICE and around["ts"] <= launched.get(
                    one["args"].get("correlation"), -1) < around["ts"] + around["dur"])
    return found


def told(path) -> dict[str, float]:
    rows = json.loads(called("ops", "--type", "annotation", "--json", path).stdout)["ops"]
    return {row["op"]: row["device_ns"] / 1000 for row in rows if row["op"].startswith("##")}


@pytest.mark.long
@needs_shared
def test_backward_has_what_autograd_s_thread_launched():
    path = DLRM.parent / "gpu" / "a100_nccl_data.json.gz"
    expected = summed(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])
    assert expected["## backward ##"] > expected["## forward ##"] > 0
    assert told(path) == pytest.approx(dict(expected), rel=1e-4)


def trained(thread: int) -> list[dict]:
    """A step on a thread, with a backward pass on another one."""
    first = 100 * thread
    return [op("## backward ##", 10, 80, tid=thread, cat="user_annotation"),
            op("autograd::engine::evaluate_function: MmBackward0", 20, 40, tid=90 + thread),
            op("cudaLaunchKernel", 25, 2, tid=90 + thread, cat="cuda_runtime", correlation=first),
            op("kernel", 40, 30, tid=7, cat="kernel", correlation=first)]


def test_of_several_threads_that_wait_for_autograd_nothing_is_said(tmp_path):
    assert told(folder(tmp_path, trained(1))) == {"## backward ##": 30}
    assert told(folder(tmp_path, [*trained(1), *trained(2)])) == {"## backward ##": 0}
