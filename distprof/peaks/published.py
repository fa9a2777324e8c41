"""Published peak rates of devices, one row of `PEAKS` per device: dense FLOP/s per dtype, and bytes/s.

Vendors also publish tensor core rates with 2:4 sparsity, twice the dense rates. All rates here are dense.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePeaks:
    """Published peak rates of one device."""

    pattern: str
    """Regular expression for the whole device name in torch; a variant with another name needs its own row."""
    flops_per_second: Mapping[str, float]
    """Dtype -> rate of the fastest unit for dense matrix products; on GeForce with accumulation in float32, as in
    torch. float32 excludes TF32; float64 includes tensor or matrix cores if the device has them. A missing dtype is not
    accelerated or not published."""
    bytes_per_second: float
    """Memory bandwidth."""
    source: str
    """The vendor's publication."""
    year: int
    """Year of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak rate of one device in one dtype."""

    dtype: str
    flops_per_second: float
    bytes_per_second: float
    source: str
    year: int


@cache
def device_peaks(device_name: str) -> DevicePeaks | None:
    """Returns the row of a device.

    Args:
        device_name: As `torch.cuda.get_device_name()` gives it.

    Returns:
        None if no row matches exactly this device.
    """
    return next((row for row in PEAKS if re.fullmatch(row.pattern, device_name.strip(), re.IGNORECASE)), None)


def peak(device_name: str, dtype: str) -> Peak | None:
    """Returns the peak rates of a device in a dtype.

    Args:
        device_name: As `torch.cuda.get_device_name()` gives it.
        dtype: Name in torch, with or without `torch.`; `tf32` for float32 products that may use TF32. All 8-bit floats
            are `float8`.

    Returns:
        None if the device has no row, or the row lacks the dtype.
    """
    row = device_peaks(device_name)
    name = dtype.removeprefix("torch.")
    name = "float8" if name.startswith("float8") else name
    if row is None or name not in row.flops_per_second:
        return None
    return Peak(dtype=name, flops_per_second=row.flops_per_second[name], bytes_per_second=row.bytes_per_second,
                source=row.source, year=row.year)


def _row(pattern: str, source: str, year: int, *, gigabytes: float, fp64: float | None = None,
         fp32: float | None = None, tf32: float | None = None, fp16: float | None = None, bf16: float | None = None,
         fp8: float | None = None, int8: float | None = None) -> DevicePeaks:
    """Returns a row for rates in TFLOP/s and bandwidth in GB/s, as in data sheets."""
    tera = {"float64": fp64, "float32": fp32, "tf32": tf32, "float16": fp16, "bfloat16": bf16, "float8": fp8,
            "int8": int8}
    return DevicePeaks(pattern=pattern, source=source, year=year, bytes_per_second=gigabytes * 1e9,
                       flops_per_second={dtype: rate * 1e12 for dtype, rate in tera.items() if rate is not None})


NVIDIA = r"(?:NVIDIA |Tesla |NVIDIA Tesla )?"
PEAKS: tuple[DevicePeaks, ...] = (
    # Volta and Turing: tensor cores for float16 only, no sparsity
    _row(NVIDIA + r"V100-SXM2-(?:16|32)GB", "NVIDIA V100 data sheet", 2020, fp64=7.8, fp32=15.7, fp16=125,
         gigabytes=900),
    _row(NVIDIA + r"V100-PCIE-(?:16|32)GB", "NVIDIA V100 data sheet", 2020, fp64=7, fp32=14, fp16=112, gigabytes=900),
    _row(NVIDIA + r"V100S-PCIE-32GB", "NVIDIA V100 data sheet", 2020, fp64=8.2, fp32=16.4, fp16=130, gigabytes=1134),
    _row(NVIDIA + r"T4", "NVIDIA T4 data sheet", 2019, fp32=8.1, fp16=65, int8=130, gigabytes=300),
    # Ampere: data sheets print dense | sparse
    _row(NVIDIA + r"A100-SXM4-40GB", "NVIDIA A100 data sheet", 2020, fp64=19.5, fp32=19.5, tf32=156, fp16=312,
         bf16=312, int8=624, gigabytes=1555),
    _row(NVIDIA + r"A100-SXM4-80GB", "NVIDIA A100 data sheet", 2021, fp64=19.5, fp32=19.5, tf32=156, fp16=312,
         bf16=312, int8=624, gigabytes=2039),
    _row(NVIDIA + r"A100-PCIE-40GB", "NVIDIA A100 data sheet", 2020, fp64=19.5, fp32=19.5, tf32=156, fp16=312,
         bf16=312, int8=624, gigabytes=1555),
    _row(NVIDIA + r"A100 80GB PCIe", "NVIDIA A100 data sheet", 2021, fp64=19.5, fp32=19.5, tf32=156, fp16=312,
         bf16=312, int8=624, gigabytes=1935),
    _row(NVIDIA + r"A10", "NVIDIA A10 data sheet", 2021, fp32=31.2, tf32=62.5, fp16=125, bf16=125, int8=250,
         gigabytes=600),
    _row(NVIDIA + r"A30", "NVIDIA A30 data sheet", 2021, fp64=10.3, fp32=10.3, tf32=82, fp16=165, bf16=165, int8=330,
         gigabytes=933),
    _row(NVIDIA + r"A40", "NVIDIA A40 data sheet", 2020, fp32=37.4, tf32=74.8, fp16=149.7, bf16=149.7, int8=299.3,
         gigabytes=696),
    _row(r"(?:NVIDIA )?GeForce RTX 3090", "NVIDIA Ampere GA102 whitepaper", 2021, fp32=35.6, tf32=35.6, fp16=71,
         bf16=71, int8=284, gigabytes=936),
    # Ada; the L4 data sheet prints sparse rates only, these are half of them
    _row(NVIDIA + r"L4", "NVIDIA L4 data sheet, sparse rates halved", 2023, fp32=30.3, tf32=60, fp16=121,
         bf16=121, fp8=242.5, int8=242.5, gigabytes=300),
    _row(NVIDIA + r"L40", "NVIDIA L40 data sheet", 2023, fp32=90.5, tf32=90.5, fp16=181.05, bf16=181.05, fp8=362,
         int8=362, gigabytes=864),
    _row(NVIDIA + r"L40S", "NVIDIA L40S data sheet", 2023, fp32=91.6, tf32=183, fp16=362.05, bf16=362.05, fp8=733,
         int8=733, gigabytes=864),
    _row(r"(?:NVIDIA )?GeForce RTX 4090", "NVIDIA Ada whitepaper", 2022, fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2,
         fp8=330.3, int8=660.6, gigabytes=1008),
    # Hopper: the whitepaper prints dense rates, later data sheets sparse ones
    _row(NVIDIA + r"H100 80GB HBM3", "NVIDIA H100 whitepaper", 2022, fp64=66.9, fp32=66.9, tf32=494.7, fp16=989.4,
         bf16=989.4, fp8=1978.9, int8=1978.9, gigabytes=3350),
    _row(NVIDIA + r"H100 PCIe", "NVIDIA H100 whitepaper", 2022, fp64=51.2, fp32=51.2, tf32=378, fp16=756, bf16=756,
         fp8=1513, int8=1513, gigabytes=2000),
    _row(NVIDIA + r"H100 NVL", "NVIDIA H100 data sheet, sparse rates halved", 2024, fp64=60, fp32=60,
         tf32=417.5, fp16=835.5, bf16=835.5, fp8=1670.5, int8=1670.5, gigabytes=3900),
    _row(NVIDIA + r"H200", "NVIDIA H200 data sheet, sparse rates halved", 2023, fp64=67, fp32=67,
         tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979, int8=1979, gigabytes=4800),
    _row(NVIDIA + r"H800", "NVIDIA H800 data sheet, sparse rates halved", 2023, fp64=1, fp16=989.5,
         bf16=989.5, int8=1979, gigabytes=3350),
    _row(NVIDIA + r"H20", "NVIDIA H20 data sheet", 2023, fp64=1, fp32=44, tf32=74, fp16=148, bf16=148, fp8=296,
         int8=296, gigabytes=4000),
    # Blackwell
    _row(NVIDIA + r"B200", "NVIDIA Blackwell data sheet (HGX B200), sparse rates halved", 2025, fp64=37,
         fp32=75, tf32=1100, fp16=2250, bf16=2250, fp8=4500, int8=4500, gigabytes=7700),
    _row(NVIDIA + r"GB200", "NVIDIA Blackwell data sheet (GB200 NVL72), sparse rates halved", 2025,
         fp64=40, fp32=80, tf32=1250, fp16=2500, bf16=2500, fp8=5000, int8=5000, gigabytes=8000),
    _row(r"(?:NVIDIA )?GeForce RTX 5090", "NVIDIA RTX Blackwell whitepaper", 2025, fp32=104.8, tf32=104.8, fp16=209.5,
         bf16=209.5, fp8=419, int8=838, gigabytes=1792),
    # AMD prints dense rates; torch sees each of the two dies of an MI250X as a device
    _row(r"AMD Instinct MI210", "AMD Instinct MI210 data sheet", 2022, fp64=45.3, fp32=45.3, fp16=181, bf16=181,
         int8=181, gigabytes=1638.4),
    _row(r"AMD Instinct MI250X", "AMD Instinct MI250X data sheet, halved for one of two dies", 2021, fp64=47.85,
         fp32=47.85, fp16=191.5, bf16=191.5, int8=191.5, gigabytes=1638.4),
    _row(r"AMD Instinct MI300X(?: OAM)?", "AMD Instinct MI300X data sheet", 2023, fp64=163.4, fp32=163.4, tf32=653.7,
         fp16=1307.4, bf16=1307.4, fp8=2614.9, int8=2614.9, gigabytes=5300),
    _row(r"AMD Instinct MI325X(?: OAM)?", "AMD Instinct MI325X data sheet", 2024, fp64=163.4, fp32=163.4, tf32=653.7,
         fp16=1307.4, bf16=1307.4, fp8=2614.9, int8=2614.9, gigabytes=6000),
)
"""One row per device; the first match is used."""
