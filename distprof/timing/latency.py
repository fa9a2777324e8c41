"""Latency outside of a run: a call comes in and is repeated, time per module and call goes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distprof.model.modules import ModuleMap, Site
from distprof.model.scopes import ModuleScopes
from distprof.timing.chains import Latency
from distprof.timing.time_pass import TimePass


def measure_latency(call: Callable[[], Any], *, warmup: int = 0, runs: int = 1,
                    modules: ModuleMap | None = None) -> dict[Site, Latency]:
    """Calls `call` and times every module that runs in it, forward and backward.

    The model is not changed, and no hook stays, whatever `call` raises. On CUDA nothing waits for the device until
    the last call is done.

    Args:
        call: Runs the model, with its backward if that is to be measured; it gets no arguments.
        warmup: Calls that are not measured.
        runs: Calls that are.
        modules: Names of modules; models that are not in it yet are added.

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
