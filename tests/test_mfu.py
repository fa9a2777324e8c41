"""Model FLOPs utilisation: the ratio follows from FLOPs, time and a peak that is named; unknown stays unknown."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import torch
from conftest import distprof
from recording import train
from torch import nn

from distprof import matmul_dtype
from distprof.merge.mfu import model_flops


@pytest.fixture
def run(ddp, tmp_path) -> Path:
    """A copy of a real run of 4 ranks."""
    return Path(shutil.copytree(ddp, tmp_path / "run"))


def says(run: Path, **values: object) -> None:
    """Makes every rank say something else of itself."""
    for path in run.glob("rank*/rank.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | values))


def step(run: Path, *flags: object) -> tuple[dict, float]:
    """`step` of the summary, and the model's FLOPs of a step counted without the ops table."""
    found = json.loads(distprof("stats", "--json", run, *flags).stdout)
    # backward does two products for each of forward
    return found["step"], 3 * found["per_gpu"]["fwd_flops"]["mean"]


def test_a_given_peak_is_the_denominator(run):
    found, flops = step(run, "--peak", "1.2e12")
    assert found["mfu"] == pytest.approx(flops / (found["time_ns"] / 1e9 * 1.2e12))
    assert 0 < found["mfu"] < 1 and "1.20 TFLOP/s, as given" in found["mfu_basis"]
    text = distprof("stats", "--peak", "1.2e12", run).stdout
    assert f"MFU {100 * found['mfu']:.1f} % = forward and backward FLOPs" in text


@pytest.mark.parametrize(("dtype", "tera", "device"), [
    ("bfloat16", 312, "NVIDIA A100-SXM4-80GB"), ("float32", 19.5, "NVIDIA A100-SXM4-80GB"),
    ("tf32", 156, "NVIDIA A100-SXM4-80GB"), ("tf32", 15.7, "Tesla V100-SXM2-32GB")])
def test_the_published_peak_of_the_dtype_is_the_denominator(run, dtype, tera, device):
    says(run, device_name=device, matmul_dtype=dtype)
    found, flops = step(run)
    assert found["mfu"] == pytest.approx(flops / (found["time_ns"] / 1e9 * tera * 1e12))
    assert f"dense peak of {device} in" in found["mfu_basis"] and "data sheet, 20" in found["mfu_basis"]
    assert "what its modules return" in found["mfu_basis"]


def test_ranks_on_different_devices_are_each_measured_by_their_own(run):
    says(run, device_name="NVIDIA A100-SXM4-80GB", matmul_dtype="bfloat16")
    path = run / "rank00003" / "rank.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"device_name": "NVIDIA H100 PCIe"}))
    found, flops = step(run)
    least_s = (3 * flops / 312e12 + flops / 756e12) / 4
    assert found["mfu"] == pytest.approx(least_s / (found["time_ns"] / 1e9))
    assert "A100" in found["mfu_basis"] and "H100 PCIe" in found["mfu_basis"]


@pytest.mark.parametrize(("values", "words"), [
    ({}, "no published peak of"), ({"device_name": "NVIDIA H100 80GB HBM3", "matmul_dtype": "complex64"}, "complex64"),
    ({"device_name": "NVIDIA H100 80GB HBM3", "matmul_dtype": None}, "does not tell the dtype"),
    ({"device_name": None}, "does not tell the device")])
def test_without_a_peak_it_is_null_and_says_why(run, values, words):
    says(run, **values)
    found, _ = step(run)
    assert found["mfu"] is None and words in found["mfu_basis"] and "--peak" in found["mfu_basis"]
    assert f"MFU {found['mfu_basis']}" in distprof("stats", run).stdout


def test_a_run_of_an_older_version_has_no_device(run):
    for path in run.glob("rank*/rank.json"):
        known = json.loads(path.read_text())
        path.write_text(json.dumps({key: known[key] for key in known if key not in ("device_name", "matmul_dtype")}))
    assert step(run)[0]["mfu"] is None and step(run, "--peak", 1e12)[0]["mfu"] > 0


def test_a_summary_of_an_older_version_is_computed_anew(run):
    path = run / "merged" / "summary.json"
    known = json.loads(path.read_text())
    del known["step"]["mfu_basis"]
    path.write_text(json.dumps(known))
    assert "mfu_basis" in step(run)[0]


def test_without_a_timed_step_it_is_unknown(tmp_path):
    train(tmp_path / "run", nn.Linear(4, 4), lambda: torch.ones(2, 4), steps="wait=0,count=1,time=0,trace=0")
    found, _ = step(tmp_path / "run", "--peak", 1e12)
    assert found["mfu"] is None and "time pass" in found["mfu_basis"]


@pytest.mark.parametrize("peak", ["0", "-1", "nan", "inf"])
def test_a_peak_that_is_none_is_refused(run, peak):
    done = distprof("stats", "--peak", peak, run)
    assert done.returncode == 2 and "positive number of FLOP/s" in done.stderr


def ops(**columns: list) -> pl.DataFrame:
    return pl.DataFrame({"rank": [0] * len(columns["op"]), "shapes": ["[]"] * len(columns["op"])} | columns)


def test_model_flops_leave_recomputation_out():
    shapes = json.dumps([[2, 4, 16, 32], [2, 4, 16, 64], [2, 4, 16, 64], [2, 4, 16, 32]])
    frame = ops(op=["aten::mm", "aten::mm", "aten::mm", "aten::_scaled_dot_product_flash_attention_backward"],
                phase=["forward", "recompute", "backward", "backward"], shapes=["[]", "[]", "[]", shapes],
                flops=[10.0, 10.0, 20.0, 3 * 64.0 + 2 * 32.0])
    found = model_flops(frame)
    # of five products in backward (three over 64 keys, two over 32 values) one repeats the scores
    assert found["flops"].to_list() == [10 + 20 + 2 * 64 + 2 * 32] and found["dtype"].to_list() == [None]


def test_ops_that_tell_their_dtype_are_kept_apart():
    frame = ops(op=["a", "b", "c"], phase=["forward"] * 3, flops=[1.0, 2.0, 4.0],
                dtype=["float32", "bfloat16", "float32"])
    assert dict(model_flops(frame).select("dtype", "flops").iter_rows()) == {"float32": 5.0, "bfloat16": 2.0}


class Lookup(nn.Module):
    """A large embedding, a norm and a small layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.layer = nn.Embedding(500, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(self.norm(self.embedding(x))).float()


@pytest.mark.parametrize(("model", "context", "dtype"), [
    (Lookup(), nullcontext(), "float32"), (Lookup().double(), nullcontext(), "float64"),
    (Lookup().bfloat16(), nullcontext(), "bfloat16"), (Lookup(), torch.autocast("cpu", torch.bfloat16), "bfloat16")])
def test_the_dtype_is_the_one_products_ran_in(tmp_path, model, context, dtype):
    with context:
        recorded = train(tmp_path / "run", model, lambda: torch.zeros(2, 3, dtype=torch.long))
    assert recorded.info["matmul_dtype"] == dtype and recorded.info["device_name"]


@pytest.mark.parametrize(("module", "switch"), [
    (nn.Linear(1, 1), torch.backends.cuda.matmul), (nn.Conv2d(1, 1, 1), torch.backends.cudnn.conv)])
def test_on_cuda_float32_is_tf32_where_torch_may_use_it(module, switch):
    result, before = SimpleNamespace(dtype=torch.float32, is_cuda=True), switch.fp32_precision
    try:
        for allowed, expected in (("tf32", "tf32"), ("ieee", "float32")):
            switch.fp32_precision = allowed
            assert matmul_dtype._name(module, result) == expected
            assert matmul_dtype._name(module, torch.zeros(1)) == "float32", "a CPU has no TF32"
    finally:
        switch.fp32_precision = before
    assert switch.fp32_precision == before


def test_without_a_counted_step_the_dtype_is_unknown(tmp_path):
    recorded = train(tmp_path / "run", nn.Linear(4, 4), lambda: torch.ones(2, 4),
                     steps="wait=0,count=0,time=1,trace=0")
    assert recorded.info["matmul_dtype"] is None and matmul_dtype.MatmulDtype().name() is None
