"""Measured peak rates: FLOP/s of matrix products for each dtype, and bytes/s of a copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from statistics import median
from typing import Any

import torch

from distprof.errors import UsageError
from distprof.model.tensors import dtype_name
from distprof.peaks.published import Peak
from distprof.process.identity import cpu_name
from distprof.timing.repetition import durations
from distprof.units import counted

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LONG_ENOUGH_NS = 20_000_000
"""Products take at least this long, so that launch overhead does not matter."""
RUNS = 9
TF32 = "tf32"
SMALLEST, LARGEST = 256, 8192
COPY_BYTES = 256 << 20
"""Larger than caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRate:
    """One measured rate."""

    what: str
    """matmul or copy."""
    dtype: str | None
    """None for a copy."""
    per_second: float | None
    """FLOP/s of a product, or bytes/s read and written by a copy; None if the device cannot do it."""
    how: str
    """Sizes and runs, or why the rate is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPeak:
    """The measured rates of a device."""

    device: str
    num_threads: int | None
    """Number of torch threads; None on a GPU."""
    rates: tuple[MeasuredRate, ...]


def measure_peak(device: torch.device | str = "cpu", *, runs: int = RUNS) -> MeasuredPeak:
    """Measures products of square matrices in each dtype, and a copy; takes a few seconds and up to 1.5 GB.

    The size is doubled, starting from 256, until a product takes 20 ms, up to 8192.

    Args:
        device: A CPU or CUDA device.
        runs: Number of runs, of which the median is taken.

    Raises:
        UsageError: The device is of another type, or `runs` is less than 1.
    """
    place = torch.device(device)
    if place.type not in ("cpu", "cuda") or runs < 1:
        raise UsageError(f"device must be a CPU or CUDA device and runs at least 1, not {place} and {runs}")
    with torch.inference_mode():
        rates = (*(_matmul(dtype, place, runs) for dtype in DTYPES), _copy(place, runs))
    on_cpu = place.type == "cpu"
    return MeasuredPeak(device=cpu_name() if on_cpu else torch.cuda.get_device_name(place),
                        num_threads=torch.get_num_threads() if on_cpu else None, rates=rates)


def measured_peak(dtype: str, device: torch.device | str = "cpu") -> Peak | None:
    """Measures the peak of a device in one dtype; None if it cannot multiply in it.

    Args:
        dtype: Name in torch, like bfloat16; `tf32` for float32 products that may use TF32.
        device: A CPU or CUDA device.
    """
    place, may_use_tf32 = torch.device(device), dtype == TF32
    with torch.inference_mode(), _allowing_tf32(may_use_tf32):
        product = _matmul(torch.float32 if may_use_tf32 else getattr(torch, dtype), place, RUNS)
        copy = _copy(place, RUNS)
    if product.per_second is None or copy.per_second is None:
        return None
    return Peak(dtype=dtype, flops_per_second=product.per_second, bytes_per_second=copy.per_second,
                source=f"measured here, {product.how}", year=date.today().year)


@contextmanager
def _allowing_tf32(allowed: bool) -> Iterator[None]:  # noqa: FBT001 (the function's name says what is allowed)
    settings: Any = torch.backends.cuda.matmul
    name, on = ("fp32_precision", TF32) if hasattr(settings, "fp32_precision") else ("allow_tf32", True)  # torch 2.8
    before = getattr(settings, name)
    try:
        setattr(settings, name, on if allowed else before)
        yield
    finally:
        setattr(settings, name, before)


def _matmul(dtype: torch.dtype, device: torch.device, runs: int) -> MeasuredRate:
    name = dtype_name(dtype)
    try:
        size, time_ns = _long_product(dtype, device, runs)
    except RuntimeError as error:  # no kernel for the dtype, or no memory
        return MeasuredRate(what="matmul", dtype=name, per_second=None, how=str(error).splitlines()[0])
    return MeasuredRate(what="matmul", dtype=name, per_second=2 * size**3 / time_ns * 1e9,
                        how=f"{size} x {size} x {size}, median of {counted(runs, 'run')}")


def _long_product(dtype: torch.dtype, device: torch.device, runs: int) -> tuple[int, float]:
    """Returns the first size that takes long enough (or the largest), and its median time."""
    size = SMALLEST
    while True:
        # not zeros: GPUs multiply them faster, because that draws less power
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty(size, size, device=device, dtype=dtype)

        def product(left: torch.Tensor = left, right: torch.Tensor = right, out: torch.Tensor = out) -> None:
            torch.mm(left, right, out=out)

        product()
        if size == LARGEST or durations(product, 1, device)[0] >= LONG_ENOUGH_NS:
            return size, median(durations(product, runs, device))
        size *= 2


def _copy(device: torch.device, runs: int) -> MeasuredRate:
    try:
        source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        target.copy_(source)  # first touch, to allocate the pages
        time_ns = median(durations(lambda: target.copy_(source), runs, device))
    except RuntimeError as error:
        return MeasuredRate(what="copy", dtype=None, per_second=None, how=str(error).splitlines()[0])
    return MeasuredRate(what="copy", dtype=None, per_second=2 * COPY_BYTES / time_ns * 1e9,
                        how=f"{COPY_BYTES >> 20} MiB read and written, median of {counted(runs, 'run')}")
