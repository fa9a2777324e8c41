"""distprof.profile: counts of `distprof.count`, times that are true, and everything left as it was."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import distprof
from distprof.errors import UsageError
from distprof.peaks.published import Peak
from distprof.profiling.profile import roofline
from support.isolated import Raises, state
from support.jobs import called
from support.jobs import distprof as command
from support.models import Checkpointed, Residual, Sleepy


def sleeping() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), Sleepy(0.01, 0.02), nn.Sequential(nn.Linear(8, 8)))


def test_a_profile_is_a_count_with_true_times():
    model, x = sleeping(), torch.randn(4, 8)
    profile, counts = distprof.profile(model, x, backward=True, warmup=1, runs=4), distprof.count(
        model, x, backward=True)
    assert profile.by_module() == counts.by_module() and profile.flops == counts.flops
    slept = profile.latencies["1"]
    for measured, naps in ((slept.fwd_ns, model[1].slept_forward), (slept.bwd_ns, model[1].slept_backward)):
        assert measured >= sum(naps[-9:-5]) / 4 * 1e9, "the calls without timers and the count's came later"
        assert profile.latency_ns >= sum(naps[-5:-1]) / 4 * 1e9
    for phase in ("fwd", "bwd"):
        own = sum(getattr(latency, f"{phase}_self_ns") for latency in profile.latencies.values())
        assert own == pytest.approx(getattr(profile.latencies[""], f"{phase}_ns"), rel=0.02)


def test_recomputation_is_timed_apart():
    model = nn.Sequential(nn.Linear(8, 8), Checkpointed(nn.Sequential(Sleepy(0.05, 0), nn.Linear(8, 8)),
                                                       reentrant=False))
    found = [distprof.profile(model, torch.randn(2, 8), backward=True, warmup=0, runs=2).latencies["1"]
             for _ in range(3)]
    assert all(latency.recompute_ns >= 0.05e9 for latency in found)
    assert min(latency.bwd_ns for latency in found) < 0.05e9, "a busy machine may stop us, but not each time"


def test_mfu_and_roofline_rest_on_the_peak_that_is_told():
    peak = Peak(dtype="float32", flops_per_second=1e12, bytes_per_second=1e11, source="the test", year=2026)
    profile = distprof.profile(nn.Linear(64, 64), torch.randn(64, 64), warmup=1, runs=3, peak=peak)
    assert profile.mfu == pytest.approx(2 * 64**3 / (1e12 * profile.latency_ns / 1e9))
    root = profile.modules[0]
    assert profile.roofline(root) == roofline(2 * 64**3, root.io_bytes, profile.latencies[""].fwd_ns, 1e12, 1e11)
    assert "1.00 TFLOP/s in float32, the test" in str(profile)
    unknown = distprof.profile(nn.Linear(4, 4), torch.randn(1, 4), warmup=0, runs=1)
    if unknown.peak is None:
        assert unknown.mfu is None and unknown.roofline(unknown.modules[0]) is None and "MFU          unknown" in str(
            unknown)


def test_times_stand_in_the_tree_and_in_the_data():
    profile = distprof.profile(nn.Sequential(Residual(8)), torch.randn(2, 8), backward=True, warmup=0, runs=1)
    title = str(profile).splitlines()[0]
    assert "forward" in title and "backward" in title and "% time" in title
    rows = {row["module_path"]: row for row in profile.to_dict()["modules"]}
    assert rows["0.inner"]["fwd_time_ns"] == profile.latencies["0.inner"].fwd_ns > 0
    frame = profile.to_polars().modules
    assert frame["bwd_time_ns"].to_list() == [row["bwd_time_ns"] for row in rows.values()]
    assert distprof.count(nn.Linear(4, 4), torch.randn(1, 4)).to_dict()["modules"][0]["fwd_time_ns"] is None


@pytest.mark.parametrize("bad", [False, True])
def test_model_and_process_are_left_as_they_were(bad):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), *([Raises()] if bad else []))
    x = torch.randn(4, 4)
    before = state(model)
    if bad:
        with pytest.raises(KeyError, match="inside"):
            distprof.profile(model, x, backward=True)
    else:
        distprof.profile(model, x, backward=True, warmup=1, runs=2)
    assert state(model) == before


def test_modules_that_a_function_calls_are_left_as_they_were():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    x = torch.randn(4, 4)
    model(x).sum().backward()
    before = state(model)
    profile = distprof.profile(lambda: model(x), backward=True, warmup=1, runs=2)
    assert state(model) == before and profile.latencies["0"].bwd_ns > 0


@pytest.mark.parametrize(("options", "message"), [
    ({"runs": 0}, "runs=0"), ({"warmup": -1}, "warmup=-1"), ({"peak": "guessed"}, "'guessed'")])
def test_wrong_arguments_are_told(options, message):
    with pytest.raises(UsageError, match=message):
        distprof.profile(nn.Linear(4, 4), torch.randn(1, 4), **options)


def test_nothing_takes_time_on_the_meta_device():
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    with pytest.raises(UsageError, match="meta device") as caught:
        distprof.profile(model, torch.randn(1, 4))
    assert "distprof.count" in caught.value.hint
    with FakeTensorMode():
        fake = nn.Linear(4, 4), torch.randn(1, 4)
        for measure in (distprof.profile, distprof.throughput):
            with pytest.raises(UsageError, match="storage, but found fake tensors"):
                measure(*fake)
        assert distprof.count(*fake).flops == 32


@pytest.mark.job
def test_from_the_command_line(tmp_path):
    (tmp_path / "net.py").write_text("import torch\ndef make(): return torch.nn.Linear(4, 2), torch.ones(3, 4)\n")
    done = command("profile", "net.py:make", "--backward", "--runs", 2, cwd=tmp_path)
    assert done.returncode == 0 and "latency" in done.stdout and "backward" in done.stdout, done.stderr
    rows = json.loads(command("profile", "net.py:make", "--runs", 2, "--json", cwd=tmp_path).stdout)["modules"]
    assert rows[0]["fwd_flops"] == 48 and rows[0]["fwd_time_ns"] > 0


def test_a_profile_says_in_short_what_it_is():
    profile = distprof.profile(nn.Linear(4, 4), torch.randn(1, 4), warmup=0, runs=1)
    assert repr(profile).startswith("Profile(flops=32, macs=16, params=20, modules=1") and len(repr(profile)) < 120


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_told(tmp_path):
    (tmp_path / "net.py").write_text("import torch\ndef make(): return torch.nn.Linear(4, 2), torch.ones(3, 4)\n")
    done = called("profile", f"{tmp_path / 'net.py'}:make", "--device", "cuda")
    assert done.returncode == 2 and "--device cuda: no CUDA device found" in done.stderr
    assert len(done.stderr.splitlines()) == 1
