"""`distprof.throughput`: latency, samples/s, CPU time and memory of inference."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.markup import escape
from torch import nn

from distprof.errors import UsageError
from distprof.model.tensors import check_storage, num_samples, tensors
from distprof.process.identity import cpu_name
from distprof.system import status_bytes
from distprof.timing.repetition import durations
from distprof.units import UNKNOWN, counted, duration, si, size

CUDA_MEMORY = "peak of the CUDA caching allocator, weights included"
RSS_RISE = "peak resident set of the process above the resident set before"
TOKEN_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStatistics:
    """Statistics of the time per run, in ns; percentiles are interpolated."""

    mean: float
    min: float
    median: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Result of `throughput`. Rates are per second of wall time over all runs; None is unknown."""

    device: str
    num_threads: int
    """Number of torch threads on the host."""
    warmup: int
    runs: int
    samples: int | None
    """Samples per run."""
    tokens: int | None
    """Tokens per run."""
    latency_ns: LatencyStatistics
    latency_clock: str
    """Clock that measured the latencies."""
    samples_per_second: float | None
    tokens_per_second: float | None
    wall_ns: int
    """Time of all runs, excluding warm-up, until the device finished."""
    user_cpu_ns: int
    """CPU time of all threads of the process in that time."""
    system_cpu_ns: int
    peak_memory_bytes: int | None
    """None if unknown, such as when the process had a larger resident set before."""
    memory_kind: str
    """Meaning of `peak_memory_bytes`."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __rich__(self) -> str:
        return escape(str(self))

    def __str__(self) -> str:
        latency = self.latency_ns
        rows = (
            ("device", f"{self.device}, {counted(self.num_threads, 'thread')} on the host"),
            ("runs", f"{self.runs} after {self.warmup} for warm-up"),
            ("samples/s", _rate(self.samples_per_second, self.samples)),
            ("tokens/s", _rate(self.tokens_per_second, self.tokens)),
            ("latency", f"median {duration(latency.median)}, p90 {duration(latency.p90)}, p99 {duration(latency.p99)}, "
                        f"mean {duration(latency.mean)}, min {duration(latency.min)}, max {duration(latency.max)}"),
            ("", f"by {self.latency_clock}"),
            ("time", f"wall {duration(self.wall_ns)}, user CPU {duration(self.user_cpu_ns)}, "
                     f"system CPU {duration(self.system_cpu_ns)}"),
            ("memory", f"{size(self.peak_memory_bytes)} ({self.memory_kind})"),
        )
        return "\n".join(f"{name:<9}  {text}" for name, text in rows)


def _rate(per_second: float | None, each: int | None) -> str:
    return UNKNOWN if each is None else f"{si(per_second)} ({each} a run)"


def throughput(model: Callable[..., Any], inputs: object, *, warmup: int = 50, runs: int = 200,
               samples: int | None = None, tokens: int | None = None, inference_mode: bool = False) -> Throughput:
    """Measures inference by calling the model repeatedly with the same inputs.

    A module runs in eval mode without gradients; its training flags and the random state are restored. On CUDA, runs
    are not synchronised, and the peak statistics of the allocator are reset.

    Args:
        model: A module, or any callable such as `model.generate`.
        inputs: A tensor, a tuple of positional arguments, or a dict of keyword arguments, on the model's device.
        warmup: Number of calls before the measured ones.
        runs: Number of measured calls.
        samples: Samples per call; by default the first dimension of the first tensor.
        tokens: Tokens per call; by default batch x sequence if the first tensor is 2-D with integers, otherwise
            unknown.
        inference_mode: Whether to use `torch.inference_mode` instead of `torch.no_grad`: slightly faster, but tensors
            that the model keeps from a call cannot be used in training afterwards.

    Raises:
        UsageError: An argument is out of range, or the model is neither on the CPU nor on CUDA.
    """
    args, kwargs = _arguments(model, inputs)
    _check(warmup=(warmup, 0), runs=(runs, 1), samples=(samples, 1), tokens=(tokens, 1))
    device = _device(model, args, kwargs)

    def call() -> None:
        model(*args, **kwargs)

    with _as_it_was(model, device), torch.inference_mode() if inference_mode else torch.no_grad():
        before = _Memory(device)
        durations(call, warmup, device)
        used, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter_ns()
        times = durations(call, runs, device)
        wall_ns, now = time.perf_counter_ns() - began, resource.getrusage(resource.RUSAGE_SELF)
    samples = num_samples(args, kwargs) if samples is None else samples
    tokens = _num_tokens(args, kwargs) if tokens is None else tokens
    on_cuda = device.type == "cuda"
    return Throughput(
        device=torch.cuda.get_device_name(device) if on_cuda else cpu_name(), num_threads=torch.get_num_threads(),
        warmup=warmup, runs=runs, samples=samples, tokens=tokens, latency_ns=_latency(times),
        latency_clock="events on the CUDA stream" if on_cuda else "perf_counter on the host",
        samples_per_second=None if samples is None else samples * runs / wall_ns * 1e9,
        tokens_per_second=None if tokens is None else tokens * runs / wall_ns * 1e9,
        wall_ns=wall_ns, user_cpu_ns=round((now.ru_utime - used.ru_utime) * 1e9),
        system_cpu_ns=round((now.ru_stime - used.ru_stime) * 1e9),
        peak_memory_bytes=before.peak_bytes(), memory_kind=CUDA_MEMORY if on_cuda else RSS_RISE,
    )


def _arguments(model: object, inputs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not callable(model):
        raise UsageError(f"expected a module or another callable, not {type(model).__name__}")
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, tuple):
        return inputs, {}
    if isinstance(inputs, dict) and all(isinstance(name, str) for name in inputs):
        return (), inputs
    raise UsageError("inputs must be a tensor, a tuple of arguments or a dict of keyword arguments, not "
                     f"{type(inputs).__name__}", hint="for a single argument that is a list: inputs=(the_list,)")


def _check(**given: tuple[int | None, int]) -> None:
    for name, (value, least) in given.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UsageError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _device(model: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Returns the CUDA device with parameters or inputs, else the CPU."""
    owned = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    check_storage((owned, args, kwargs))
    found = {tensor.device for tensor in (*owned, *tensors(args), *tensors(kwargs))}
    other = sorted({device.type for device in found} - {"cpu", "cuda"})
    gpus = sorted((device for device in found if device.type == "cuda"), key=str)
    if other or len(gpus) > 1:
        raise UsageError("the model and its inputs must be on the CPU or on one CUDA device, but are on "
                         f"{', '.join(sorted(map(str, found)))}")
    return gpus[0] if gpus else torch.device("cpu")


@contextmanager
def _as_it_was(model: Any, device: torch.device) -> Iterator[None]:
    """A context in eval mode that restores training flags and the random state."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    flags = [(module, module.training) for module in modules if hasattr(module, "training")]  # frozen scripts lack it
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            if any(training for _, training in flags):
                model.eval()
            yield
        finally:
            if any(module.training != training for module, training in flags):
                model.train(flags[0][1])  # so that modules that react to a change of mode undo it
                for module, training in flags:
                    module.training = training


class _Memory:
    """Peak memory since the object was created."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before, self._most_before = status_bytes("VmRSS"), status_bytes("VmHWM")
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def peak_bytes(self) -> int | None:
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        most = status_bytes("VmHWM")
        if self._before is None or self._most_before is None or most is None or most <= self._most_before:
            return None
        return most - self._before


def _num_tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    first = next(iter((*tensors(args), *tensors(kwargs))), None)
    if first is None or first.dim() != 2 or first.dtype not in TOKEN_DTYPES:
        return None
    return first.numel()


def _latency(times: list[int]) -> LatencyStatistics:
    median, p90, p99 = (float(value) for value in np.percentile(times, (50, 90, 99)))
    return LatencyStatistics(mean=sum(times) / len(times), min=min(times), median=median, p90=p90, p99=p99,
                             max=max(times))
