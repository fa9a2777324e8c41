"""Peak rates and the roofline: rows are dense, names are matched whole, the bound is the slower of two."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import UsageError
from distprof.peaks.published import PEAKS, device_peaks, peak
from distprof.profiling.profile import roofline

NAMES = (
    "Tesla V100-SXM2-32GB", "Tesla V100-PCIE-16GB", "Tesla V100S-PCIE-32GB", "Tesla T4", "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB", "A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA A10",
    "NVIDIA A30", "NVIDIA A40", "NVIDIA GeForce RTX 3090", "NVIDIA L4", "NVIDIA L40", "NVIDIA L40S",
    "NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200",
    "NVIDIA H800", "NVIDIA H20", "NVIDIA B200", "NVIDIA GB200", "NVIDIA GeForce RTX 5090", "AMD Instinct MI210",
    "AMD Instinct MI250X", "AMD Instinct MI300X", "AMD Instinct MI325X OAM")
"""As drivers write them."""


@pytest.mark.parametrize("name", NAMES)
def test_a_device_has_exactly_one_row(name):
    assert [row for row in PEAKS if re.fullmatch(row.pattern, name)] == [device_peaks(name)]


def test_every_row_is_of_a_device_that_exists():
    assert {id(device_peaks(name)) for name in NAMES} == {id(row) for row in PEAKS}


@pytest.mark.parametrize("name", [
    "NVIDIA A10G", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H20-3e", "NVIDIA H200 NVL", "NVIDIA H800 PCIe", "AMD Instinct MI250",
    "Intel(R) Xeon(R) Processor", "", "H", "."])
def test_another_device_gets_no_row(name):
    assert device_peaks(name) is None and peak(name, "float32") is None


@pytest.mark.parametrize(("name", "dtype", "tera"), [
    # dense rates as published; the sparse ones are twice as high
    ("NVIDIA A100-SXM4-80GB", "bfloat16", 312), ("NVIDIA H100 80GB HBM3", "torch.bfloat16", 989.4),
    ("NVIDIA H100 PCIe", "float16", 756), ("NVIDIA H100 NVL", "float16", 835.5), ("NVIDIA H200", "bfloat16", 989.5),
    ("NVIDIA H100 80GB HBM3", "float8_e4m3fn", 1978.9), ("NVIDIA L4", "bfloat16", 121),
    ("NVIDIA B200", "bfloat16", 2250),
    ("NVIDIA A100-SXM4-40GB", "tf32", 156), ("NVIDIA A100-SXM4-40GB", "float32", 19.5), ("Tesla T4", "float16", 65),
    ("AMD Instinct MI300X", "bfloat16", 1307.4), ("AMD Instinct MI250X", "bfloat16", 191.5)])
def test_published_dense_rates(name, dtype, tera):
    found = peak(name, dtype)
    assert found is not None and found.flops_per_second == pytest.approx(tera * 1e12)
    assert found.source and 2019 <= found.year <= 2025


def test_a_dtype_that_is_not_accelerated_has_no_peak():
    assert peak("Tesla V100-SXM2-16GB", "bfloat16") is None and peak("NVIDIA H100 80GB HBM3", "complex64") is None


@pytest.mark.parametrize("row", PEAKS, ids=lambda row: row.pattern)
def test_rates_of_a_row_have_the_order_that_the_hardware_gives(row):
    rates = row.flops_per_second
    assert all(rate > 1e11 for rate in rates.values()) and 2e11 < row.bytes_per_second < 1e13
    order = [rates[dtype] for dtype in ("float64", "float32", "tf32", "float16", "int8") if dtype in rates]
    assert order == sorted(order)
    if "bfloat16" in rates:
        assert rates["bfloat16"] == rates["float16"]
    if "float8" in rates:  # one sparse number among dense ones would be 4 times float16
        assert rates["float8"] == pytest.approx(2 * rates["float16"], rel=0.02)


amounts = st.integers(min_value=0, max_value=10**18)
positive = st.floats(min_value=1e3, max_value=1e18)


@given(flops=amounts, io_bytes=amounts, time_ns=positive, peak_flops=positive, peak_bytes=positive)
def test_the_roof_is_the_lower_of_two(flops, io_bytes, time_ns, peak_flops, peak_bytes):
    found = roofline(flops, io_bytes, time_ns, peak_flops, peak_bytes)
    json.dumps(asdict(found), allow_nan=False)
    if io_bytes >= 1e-280 and (flops == 0 or flops >= 1e-280):
        roof = min(peak_flops, flops / io_bytes * peak_bytes)
        assert found.attainable_flops_per_second == pytest.approx(roof)
        if flops > 1e-6 and io_bytes > 1e-6:
            assert found.achieved_ratio == pytest.approx(flops / (time_ns / 1e9) / roof)
    assert found.attainable_flops_per_second <= peak_flops * (1 + 1e-12)


@given(flops=positive, io_bytes=positive, peak_flops=positive, peak_bytes=positive)
def test_at_its_least_time_an_operation_achieves_all_of_its_bound(flops, io_bytes, peak_flops, peak_bytes):
    least = max(flops / peak_flops, io_bytes / peak_bytes) * 1e9
    found = roofline(flops, io_bytes, least, peak_flops, peak_bytes)
    assert found.achieved_ratio == pytest.approx(1)
    assert roofline(flops, io_bytes, 2 * least, peak_flops, peak_bytes).achieved_ratio == pytest.approx(0.5)
    ridge = peak_flops / peak_bytes
    if found.arithmetic_intensity != pytest.approx(ridge):
        assert found.bound == ("compute" if found.arithmetic_intensity > ridge else "memory")


def test_work_without_bytes_and_bytes_without_work():
    assert roofline(10, 0, 1, 1e9, 1e9).arithmetic_intensity is None
    assert roofline(10, 0, 1, 1e9, 1e9).bound == "compute"
    copy = roofline(0, 1e9, 2e9, 1e12, 1e9)
    assert (copy.bound, copy.attainable_flops_per_second, copy.achieved_ratio) == ("memory", 0, 0.5)
    assert roofline(0, 0, 1, 1e9, 1e9).bound is None and roofline(1, 1, 0, 1e9, 1e9).achieved_ratio is None


@pytest.mark.parametrize(("position", "value"), [
    *itertools.product(range(3), (-1, float("nan"), float("inf"))), *itertools.product((3, 4), (0, -1, float("nan")))])
def test_nonsense_is_refused(position, value):
    numbers = [1.0, 1.0, 1.0, 1.0, 1.0]
    numbers[position] = value
    with pytest.raises(UsageError, match=" must be "):
        roofline(*numbers)
