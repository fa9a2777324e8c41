"""The roofline model: whether compute or memory limits an operation, and how close it came to the limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from distprof.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """An operation under the roofline of a device."""

    arithmetic_intensity: float | None
    """FLOPs per byte; None if no byte is moved."""
    bound: Literal["compute", "memory"] | None
    """The limit; None without work."""
    attainable_flops_per_second: float
    """min(peak FLOP/s, intensity x peak bytes/s)."""
    achieved_ratio: float | None
    """Least time on the device / measured time: achieved / attainable FLOP/s, or without FLOPs achieved / peak bytes/s.

    Above 1 if bytes came from a cache or the peaks are too low. None without a time."""


def roofline(flops: float, io_bytes: float, time_ns: float, peak_flops: float, peak_bytes: float) -> Roofline:
    """Places an operation under the roofline of a device (Williams, Waterman, Patterson 2009).

    Args:
        flops: Counted operations, 2 per multiply-accumulate.
        io_bytes: Bytes read and written.
        time_ns: Measured time; 0 where there is none.
        peak_flops: Peak rate of the dtype, in FLOP/s.
        peak_bytes: Bandwidth of the memory, in bytes/s.

    Raises:
        UsageError: A peak that is not a positive number, or work or time that is negative or not a number.
    """
    for name, value in (("peak_flops", peak_flops), ("peak_bytes", peak_bytes)):
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} must be positive, not {value}")
    for name, value in (("flops", flops), ("io_bytes", io_bytes), ("time_ns", time_ns)):
        if not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{name} must be at least 0, not {value}")
    compute_time, memory_time = flops / peak_flops, io_bytes / peak_bytes
    compute_bound = compute_time >= memory_time
    return Roofline(
        arithmetic_intensity=flops / io_bytes if io_bytes else None,
        bound=("compute" if compute_bound else "memory") if flops or io_bytes else None,
        # by the bound instead of min(): at the ridge both are equal except for rounding
        attainable_flops_per_second=peak_flops if compute_bound else flops / io_bytes * peak_bytes,
        achieved_ratio=max(compute_time, memory_time) / (time_ns / 1e9) if time_ns else None,
    )
