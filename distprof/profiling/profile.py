"""`distprof.profile`: counts of a model call with the latency, MFU and roofline of every module.

The roofline model shows whether compute or memory limits an operation, and how close it came to the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch

from distprof.counting.count import Counts, run_counted, summed
from distprof.counting.counted_call import ModuleCount
from distprof.counting.invocation import Invocation
from distprof.errors import UsageError
from distprof.model.isolation import undisturbed
from distprof.model.modules import ModuleMap
from distprof.model.tensors import check_storage
from distprof.peaks.measured import measured_peak
from distprof.peaks.published import Peak
from distprof.peaks.published import peak as published_peak
from distprof.process.accelerators import device_type
from distprof.process.identity import device_name, tf32
from distprof.timing.latency import Latency
from distprof.timing.repetition import durations, measure_latency
from distprof.units import UNKNOWN, counted, duration, percent, si


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """An operation under the roofline of a device."""

    arithmetic_intensity: float | None
    """FLOPs per byte; None if no byte is moved."""
    bound: Literal["compute", "memory"] | None
    """What limits the operation; None without work."""
    attainable_flops_per_second: float
    """min(peak FLOP/s, intensity x peak bytes/s)."""
    achieved_ratio: float | None
    """Minimum time on the device / measured time: achieved / attainable FLOP/s, or achieved / peak bytes/s without
    FLOPs. Above 1 if bytes came from a cache or the peaks are too low. None without a time."""


def roofline(flops: float, io_bytes: float, time_ns: float, peak_flops: float, peak_bytes: float) -> Roofline:
    """Places an operation under the roofline of a device (Williams, Waterman, Patterson 2009).

    Args:
        flops: Counted operations, 2 per multiply-accumulate.
        io_bytes: Bytes read and written.
        time_ns: Measured time; 0 if there is none.
        peak_flops: Peak rate of the dtype, in FLOP/s.
        peak_bytes: Bandwidth of the memory, in bytes/s.

    Raises:
        UsageError: A peak is not a positive number, or work or time is negative or not a number.
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
        # by the bound instead of min(), which rounding could make inconsistent at the ridge
        attainable_flops_per_second=peak_flops if compute_bound else flops / io_bytes * peak_bytes,
        achieved_ratio=max(compute_time, memory_time) / (time_ns / 1e9) if time_ns else None,
    )


HEAVY = 1.1
"""If timers make a call longer by more than this factor, the text mentions it."""
SHOWN_TIMES = ("fwd_ns", "fwd_self_ns", "bwd_ns", "bwd_self_ns", "recompute_ns")


@dataclass(frozen=True, kw_only=True, repr=False)
class Profile(Counts):
    """Counts of a call, and the measured latency of each module."""

    latencies: Mapping[str, Latency]
    """Module path -> mean times per call; only modules that were called."""
    latency_ns: float
    """Mean time of a call without module timers, which slow a GPU down if the host can hardly keep it busy."""
    runs: int
    """Number of timed calls with module timers, and also without."""
    device: str
    peak: Peak | None
    """Peak rates of the device: given, measured, or published for exactly this device; None if unknown."""

    @cached_property
    def _timed_ns(self) -> float | None:
        """Time of forward, backward and recomputation of the model, as far as they ran, with module timers."""
        roots = [latency for path, latency in self.latencies.items() if path == "" or path.endswith(":")]
        return sum(map(_sum, roots)) if roots else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs / (latency x dense peak FLOP/s); None if the peak is unknown."""
        if self.peak is None or not self.latency_ns:
            return None
        return self.model_flops / (self.peak.flops_per_second * self.latency_ns / 1e9)

    def measured(self, path: str) -> Mapping[str, Any]:
        """Returns times, MFU and roofline of a module."""
        latency = self.latencies.get(path, Latency())
        found: dict[str, Any] = {f"{name.removesuffix('_ns')}_time_ns": getattr(latency, name) for name in SHOWN_TIMES}
        total = self._timed_ns
        own = _sum(latency)
        under = self.roofline(self._by_path[path]) if path in self._by_path else None
        flops = self._model_flops.get(path, 0)
        return found | {
            "time_share": own / total if own and total else None,
            "mfu": flops / (self.peak.flops_per_second * own / 1e9) if self.peak is not None and own else None,
            "bound": under.bound if under is not None else None,
            "achieved_ratio": under.achieved_ratio if under is not None else None}

    def measured_lines(self) -> tuple[tuple[str, str], ...]:
        """Returns latency of the call and MFU, each with its basis."""
        root = self.latencies.get("", Latency())
        parts = [f"{name} {duration(time)}" for name, time in (
            ("forward", root.fwd_ns), ("backward", root.bwd_ns), ("recomputed", root.recompute_ns)) if time is not None]
        slowed = (f"; modules with timers, {duration(self.latency_ns)} for the call without"
                  if self._timed_ns and self._timed_ns > HEAVY * self.latency_ns else "")
        of_runs = f"mean of {counted(self.runs, 'run')} on {self.device}{slowed}"
        if self.peak is None:
            basis = f"unknown: no published peak for {self.device}; measure it with peak='measured' (--peak)"
        else:
            basis = (f"{percent(self.mfu)}: model FLOPs / (time x {si(self.peak.flops_per_second, 'FLOP/s')} in "
                     f"{self.peak.dtype}, {self.peak.source})") if self.mfu is not None else UNKNOWN
        return (("latency", f"{', '.join(parts) or UNKNOWN}: {of_runs}"), ("MFU", basis))

    @cached_property
    def _model_flops(self) -> dict[str, int]:
        """Module path -> `model_flops`."""
        again = self.by_module("recompute_macs")
        return {module.path: module.flops["forward"] + module.flops["backward"] - 2 * again[module.path]
                for module in self.modules}

    @cached_property
    def _by_path(self) -> dict[str, ModuleCount]:
        return {module.path: module for module in self.modules}

    def roofline(self, module: ModuleCount) -> Roofline | None:
        """Returns the roofline of a module, forward and backward together; None if time or peak is unknown.

        Bytes are those read and written by its operators; data in a cache can lead to a ratio above 1.
        """
        latency = self.latencies.get(module.path)
        time_ns = _sum(latency) if latency is not None else 0
        if self.peak is None or not time_ns:
            return None
        return roofline(sum(module.flops.values()), module.io_bytes, time_ns, self.peak.flops_per_second,
                        self.peak.bytes_per_second)


def profile(model: Callable[..., Any], *args: Any, backward: bool = False, warmup: int = 3, runs: int = 10,
            peak: Peak | Literal["published", "measured"] = "published", **kwargs: Any) -> Profile:
    """Counts one call of a model, and measures the latency of every module in `runs` further calls.

    Timed calls run without the counter; on CUDA, they are timed with events and one synchronisation at the end.
    Compiled modules run uncompiled.

    Args:
        model: As for `distprof.count`.
        *args: Positional arguments of the call.
        backward: Whether to also count and time backward.
        warmup: Number of calls before the timed ones.
        runs: Number of timed calls.
        peak: Peak rates of the device: published for exactly this device, measured now in the dtype with the most FLOPs
            (takes a few seconds), or as given.
        **kwargs: Keyword arguments of the call.

    Raises:
        UsageError: As for `distprof.count`; or `runs`, `warmup` or `peak` is out of range; or the model is on the
            meta device, where no time can be measured.
        Exception: Whatever the model raises.
    """
    if runs < 1 or warmup < 0:
        raise UsageError(f"runs must be at least 1 and warmup at least 0, found runs={runs}, warmup={warmup}")
    if not isinstance(peak, Peak) and peak not in ("published", "measured"):
        raise UsageError(f"peak must be a Peak, 'published' or 'measured', not {peak!r}")
    invocation = Invocation.of(model, args, kwargs, backward=backward)
    root = invocation.model
    check_storage((list(root.parameters()) if root is not None else [], args, kwargs))
    counting, seen = run_counted(invocation)
    counts, roots = summed(counting, seen), seen.roots()
    modules = ModuleMap()
    with undisturbed(roots):
        for found in roots:
            modules.add_root(found)

        def call() -> None:
            for found in roots:
                found.zero_grad(set_to_none=True)
            invocation.run()

        measured = measure_latency(call, warmup=warmup, runs=runs, modules=modules)
        plain = durations(call, runs, torch.device(device_type()))
    return Profile(**{name: getattr(counts, name) for name in ("ops", "modules", "functions", "params")},
                   latencies={site.path: latency for site, latency in measured.items()}, runs=runs,
                   latency_ns=sum(plain) / runs,
                   device=device_name(), peak=peak if isinstance(peak, Peak) else _peak(counts, peak))


def _sum(latency: Latency) -> float:
    return sum(time for time in (latency.fwd_ns, latency.bwd_ns, latency.recompute_ns) if time is not None)


def _peak(counts: Counts, source: Literal["published", "measured"]) -> Peak | None:
    """Returns the peak rates of the device in the dtype with the most FLOPs; None if unknown."""
    flops, takes_tf32 = dict[str, int](), tf32()
    for op in counts.ops:
        if op.flops and op.dtype is not None:
            kind = "convolution" if "convolution" in op.op else "matmul"
            dtype = "tf32" if op.dtype == "float32" and takes_tf32[kind] else op.dtype
            flops[dtype] = flops.get(dtype, 0) + op.flops
    most = max(flops, key=flops.__getitem__, default=None)
    if most is None:
        return None
    return measured_peak(most, device_type()) if source == "measured" else published_peak(device_name(), most)
