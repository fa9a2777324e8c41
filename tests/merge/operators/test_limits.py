"""Least times of operators by the published rates of their device, from the vendor's data sheets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from distprof.merge.operators.counted_work import with_limits
from distprof.merge.run.run_model import Rank

A100 = "NVIDIA A100-SXM4-80GB"
"""Dense: 312 TFLOP/s in bfloat16, 156 in TF32, 19.5 in float32; 2039 GB/s."""


@pytest.mark.parametrize(("device", "dtypes", "tf32", "tflops"), [
    (A100, '["c10::BFloat16", "c10::BFloat16"]', None, 312), (A100, '["float", "Scalar"]', (True, True), 156),
    (A100, '["float"]', (False, False), 19.5), (A100, '["float"]', (False, True), None),
    (A100, '["float"]', None, None),
    ("NVIDIA V100-SXM2-16GB", '["float"]', None, 15.7), (A100, '["TensorList"]', None, None), (A100, None, None, None),
    (A100, '["flo', None, None), ("some CPU", '["float"]', None, None), (None, '["float"]', None, None)])
def test_rates_are_those_of_the_type_or_unknown(device, dtypes, tf32, tflops):
    recorded = tf32 and SimpleNamespace(tf32=dict(zip(("matmul", "convolution"), tf32, strict=True)))
    rank = Rank(number=3, folder=Path(), device_name=device, recorded=recorded)
    rows = pl.DataFrame({"rank": [3], "type": "operator", "dtypes": [dtypes], "causal_flops": [10**12],
                         "bytes": [10**9]},
                        schema_overrides={"dtypes": pl.String})
    found = with_limits(rows, [rank], (None, None)).row(0, named=True)
    assert found["compute_ns"] == (None if tflops is None else pytest.approx(1e9 / tflops))
    assert (found["memory_ns"] is None) == (tflops is None)
    if device == A100 and tflops:
        assert found["memory_ns"] == pytest.approx(1e9 / 2039, rel=0.01)
    given = with_limits(rows, [rank], (1e12, 1e9)).row(0, named=True)
    assert (given["compute_ns"], given["memory_ns"]) == (1e9, 1e9)
