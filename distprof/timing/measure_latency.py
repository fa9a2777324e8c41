"""Measures the latency of every module in repeated calls, outside of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distprof.model.modules import ModuleMap, Site
from distprof.model.scopes import ModuleScopes
from distprof.timing.latency import Latency
from distprof.timing.time_pass import TimePass


def measure_latency(call: Callable[[], Any], *, warmup: int = 0, runs: int = 1,
                    modules: ModuleMap | None = None) -> dict[Site, Latency]:
    """Repeats `call` and times every module that runs in it, forward and backward.

    No hook stays, even if `call` raises. On CUDA nothing waits for the device before the last call is done.

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
        raise ValueError(f"expected runs of 1 or more and warmup of 0 or more, found runs={runs}, warmup={warmup}")
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
