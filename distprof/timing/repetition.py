"""Repeats a call and measures each run, or each module in it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from distprof.model.modules import ModuleMap, Site
from distprof.model.scopes import ModuleScopes
from distprof.own import time
from distprof.process.accelerators import CPU
from distprof.timing.latency import Latency
from distprof.timing.time_pass import TimePass


def durations(call: Callable[[], object], runs: int, device: torch.device) -> list[int]:
    """Repeats a call and returns the time of each run in ns.

    On the CPU, times are read from `perf_counter_ns`. On an accelerator, they are the distances of events recorded
    between the runs on the current stream, with one synchronisation at the end: if the host is ahead of the device, a
    time is that of the kernels, otherwise that of the host.
    """
    if device.type != CPU:
        return _on_stream(call, runs, device)
    marks = [time.perf_counter_ns()]
    for _ in range(runs):
        call()
        marks.append(time.perf_counter_ns())
    return [end - begin for begin, end in pairwise(marks)]


def _on_stream(call: Callable[[], object], runs: int, device: torch.device) -> list[int]:
    with getattr(torch, device.type).device(device):
        marks = [torch.Event(device, enable_timing=True) for _ in range(runs + 1)]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.accelerator.synchronize()
        # between neighbours, because elapsed_time is a float32 number of milliseconds
        return [round(begin.elapsed_time(end) * 1e6) for begin, end in pairwise(marks)]


def measure_latency(call: Callable[[], Any], *, warmup: int = 0, runs: int = 1,
                    modules: ModuleMap | None = None) -> dict[Site, Latency]:
    """Repeats `call` and times every module that runs in it, forward and backward.

    No hook remains, even if `call` raises. The accelerator is only waited for after the last call.

    Args:
        call: Runs the model, and its backward if that is to be measured.
        warmup: Number of calls before the measured ones.
        runs: Number of measured calls.
        modules: Names of modules; further models are added to it.

    Returns:
        Means over `runs` of the modules that were called, in ns.

    Raises:
        ValueError: `runs` is less than 1 or `warmup` less than 0.
    """
    if runs < 1 or warmup < 0:
        raise ValueError(f"runs must be at least 1 and warmup at least 0, found runs={runs}, warmup={warmup}")
    for _ in range(warmup):
        call()
    scopes = ModuleScopes(modules if modules is not None else ModuleMap(), lambda function: function, lambda _: None,
                          one_thread=True)
    timer = TimePass(scopes, lambda function: function)
    timer.start()
    try:
        for _ in range(runs):
            call()
            timer.next_step()
    finally:
        timer.stop()
    return timer.latencies()
