"""Repeats a call and measures each run on the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import torch


def durations(call: Callable[[], object], runs: int, device: torch.device) -> list[int]:
    """Repeats a call and returns the time of each run in ns.

    On the CPU by `perf_counter_ns`. On CUDA by events between the runs on the current stream, with one synchronisation
    at the end: a time is that of the kernels if the host is ahead of the device, else that of the host.
    """
    if device.type == "cuda":
        return _on_cuda(call, runs, device)
    marks = [time.perf_counter_ns()]
    for _ in range(runs):
        call()
        marks.append(time.perf_counter_ns())
    return [end - begin for begin, end in pairwise(marks)]


def _on_cuda(call: Callable[[], object], runs: int, device: torch.device) -> list[int]:
    with torch.cuda.device(device):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.cuda.synchronize()
        # between neighbours, because elapsed_time is a float32 of milliseconds
        return [round(begin.elapsed_time(end) * 1e6) for begin, end in pairwise(marks)]
