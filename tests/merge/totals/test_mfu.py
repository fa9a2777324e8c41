"""Model FLOPs utilisation: the ratio follows from FLOPs, time and a peak that is named; unknown stays unknown."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

from distprof.merge.totals.operator_sums import model_flops
from distprof.process.identity import tf32
from support.jobs import distprof
from support.recording import train


@pytest.fixture
def run(ddp, tmp_path) -> Path:
    """A copy of a real run of 4 ranks."""
    return Path(shutil.copytree(ddp, tmp_path / "run"))


def says(run: Path, **values: object) -> None:
    """Makes every rank say something else of itself."""
    for path in run.glob("rank*/rank.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | values))


def step(run: Path, *flags: object) -> tuple[dict, float]:
    """`step` of the summary, and the model's FLOPs per step counted without the ops table."""
    found = json.loads(distprof("stats", "--json", run, *flags).stdout)
    # backward does two products for each of forward
    return found["step"], 3 * found["per_gpu"]["fwd_flops"]["mean"]


def test_a_given_peak_is_the_denominator(run):
    found, flops = step(run, "--peak", "1e11")
    assert found["mfu"] == pytest.approx(flops / (found["time_ns"] / 1e9 * 1e11))
    assert 0 < found["mfu"] < 1 and found["mfu_basis"]["code"] == "given"
    text = distprof("stats", "--peak", "1e11", run).stdout
    shown = f"{100 * found['mfu']:.1f}" if found["mfu"] >= 0.01 else f"{100 * found['mfu']:.2g}"
    assert f"MFU {shown} % = forward and backward FLOPs" in text and "100.00 GFLOP/s, as given" in text


def multiplied_in(run: Path, dtype: str) -> None:
    """Makes every op of every rank one of this dtype."""
    for path in run.glob("rank*/ops.parquet"):
        pl.read_parquet(path).with_columns(pl.lit(dtype).alias("dtype")).write_parquet(path)


@pytest.mark.parametrize(("dtype", "tf32", "tera", "device"), [
    ("bfloat16", True, 312, "NVIDIA A100-SXM4-80GB"), ("float32", False, 19.5, "NVIDIA A100-SXM4-80GB"),
    ("float32", True, 156, "NVIDIA A100-SXM4-80GB"), ("float32", True, 15.7, "Tesla V100-SXM2-32GB")])
def test_the_published_peak_of_the_dtype_is_the_denominator(run, dtype, tf32, tera, device):
    says(run, device_name=device, tf32={"matmul": tf32, "convolution": True})
    multiplied_in(run, dtype)
    found, flops = step(run)
    assert found["mfu"] == pytest.approx(flops / (found["time_ns"] / 1e9 * tera * 1e12))
    (peak,) = found["mfu_basis"]["peaks"]
    assert (peak["device"], peak["flops_per_second"]) == (device, tera * 1e12)
    assert "data sheet" in peak["source"] and peak["year"] > 2000


def test_ranks_on_different_devices_are_each_measured_by_their_own(run):
    says(run, device_name="NVIDIA A100-SXM4-80GB")
    multiplied_in(run, "bfloat16")
    path = run / "rank00003" / "rank.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"device_name": "NVIDIA H100 PCIe"}))
    found, flops = step(run)
    least_s = (3 * flops / 312e12 + flops / 756e12) / 4
    assert found["mfu"] == pytest.approx(least_s / (found["time_ns"] / 1e9))
    assert {peak["device"] for peak in found["mfu_basis"]["peaks"]} == {"NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe"}


@pytest.mark.parametrize(("device", "dtype", "code", "words"), [
    (None, "float32", "no_device", "rank 0 did not record its device"),
    ("Abacus", "float32", "no_peak", "no published float32 peak for Abacus"),
    ("NVIDIA H100 80GB HBM3", "complex64", "no_peak", "complex64 peak for NVIDIA H100"),
    ("NVIDIA H100 80GB HBM3", None, "no_dtype", "rank 0 did not record the dtype")])
def test_without_a_peak_it_is_null_and_says_why(run, device, dtype, code, words):
    says(run, device_name=device)
    multiplied_in(run, dtype)
    found, _ = step(run)
    assert found["mfu"] is None and found["mfu_basis"]["code"] == code
    line = next(line for line in distprof("stats", run).stdout.splitlines() if line.startswith("MFU unknown: "))
    assert words in line and "--peak" in line


def test_a_run_of_an_older_version_has_no_device(run):
    for path in run.glob("rank*/rank.json"):
        known = json.loads(path.read_text())
        path.write_text(json.dumps({key: known[key] for key in known if key not in ("device_name", "tf32")}))
    assert step(run)[0]["mfu"] is None and step(run, "--peak", 1e12)[0]["mfu"] > 0


def test_a_summary_of_an_older_version_is_computed_anew(run):
    path = run / "merged" / "summary.json"
    known = json.loads(path.read_text())
    del known["step"]["mfu_basis"]
    path.write_text(json.dumps(known))
    assert "mfu_basis" in step(run)[0]


def test_without_a_timed_step_it_is_unknown(tmp_path):
    train(tmp_path / "run", nn.Linear(4, 4), lambda: torch.ones(2, 4), steps="wait=0,count=1,time=0,trace=0,arrivals=0")
    found, _ = step(tmp_path / "run", "--peak", 1e12)
    assert found["mfu"] is None and found["mfu_basis"]["code"] == "no_step"


@pytest.mark.parametrize("peak", ["0", "-1", "nan", "inf"])
def test_a_peak_that_is_none_is_refused(run, peak):
    done = distprof("stats", "--peak", peak, run)
    assert done.returncode == 2 and "positive number of FLOP/s" in done.stderr


def test_model_flops_leave_recomputation_out_and_keep_dtypes_apart():
    ops = pl.DataFrame({
        "rank": [0] * 5, "op": ["aten::mm", "aten::mm", "aten::mm", "aten::flash_backward", "aten::convolution"],
        "phase": ["forward", "recompute", "backward", "backward", "forward"],
        "dtype": ["float32", "float32", "float32", "bfloat16", "float32"],
        "flops": [10.0, 10.0, 20.0, 50.0, 4.0], "recompute_macs": [0.0, 0.0, 0.0, 5.0, 0.0]})
    found = {(row["dtype"], row["convolution"]): row["flops"] for row in model_flops(ops).iter_rows(named=True)}
    assert found == {("float32", False): 30.0, ("bfloat16", False): 40.0, ("float32", True): 4.0}


@pytest.mark.parametrize(("context", "dtype"), [
    (nullcontext(), "float32"), (torch.autocast("cpu", torch.bfloat16), "bfloat16")])
def test_the_dtype_is_the_one_products_ran_in(tmp_path, context, dtype):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    with context:
        recorded = train(tmp_path / "run", model, lambda: torch.ones(2, 8))
    assert set(model_flops(recorded.table("ops"))["dtype"]) == {dtype}
    assert recorded.info["device_name"] and recorded.info["tf32"] == {"matmul": False, "convolution": False}


def test_tf32_is_what_torch_may_use_on_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    matmul = torch.backends.cuda.matmul
    setting, values = (("fp32_precision", ("tf32", "ieee")) if hasattr(matmul, "fp32_precision") else
                       ("allow_tf32", (True, False)))
    before = getattr(matmul, setting)
    try:
        for value in values:
            setattr(matmul, setting, value)
            assert tf32() == {"matmul": value == values[0], "convolution": True}, "convolutions may by default"
    finally:
        setattr(matmul, setting, before)
