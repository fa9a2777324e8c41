"""MegEngine's `trace` and `get_profile`: measures the operators of a function; the result is a dictionary for JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any

import torch

from distprof.compat.megengine.operator_log import OperatorLog, footprints_of, graph_of
from distprof.errors import UsageError
from distprof.terminal import say

FOR_MEGENGINE = (
    "capture_as_const", "record_only", "sublinear_memory_config", "dtr_config", "opt_level", "graph_opt_config",
    "symbolic_shape", "without_host", "imperative")
"""Arguments for MegEngine's compiler, which have no effect."""


class Traced:
    """A function, such as a training or inference step, whose calls can be measured."""

    def __init__(self, function: Callable[..., Any], *, profiling: bool) -> None:
        """Wraps a function; with `profiling`, each call is measured, and the last profile is kept."""
        update_wrapper(self, function)
        self._function, self._profiling = function, profiling
        self._profile: dict[str, Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        if not self._profiling:
            return self._function(*args, **kwargs)
        log = OperatorLog()
        begin = _Begin()
        with log:
            result = self._function(*args, **kwargs)
        try:
            self._profile = {"graph_exec": graph_of(log), "profiler": {
                **begin.times_of(log), "opr_footprint": footprints_of(log)}}
        except Exception as error:  # noqa: BLE001 (the script goes on)
            say(f"this call is not profiled: {error}")
        return result

    def __get__(self, instance: object, _owner: type | None = None) -> Any:
        """Binds it as a method."""
        return self if instance is None else MethodType(self, instance)

    def get_profile(self) -> dict[str, Any]:
        """Returns the operators of the last call; `profile_analyze` reads them if written with `json.dump`.

        Raises:
            UsageError: Calls are not profiled, or there was no call.
        """
        if self._profile is None:
            raise UsageError("get_profile() needs a profiled call first",
                             hint="call the function first" if self._profiling else "@trace(profiling=True)")
        return self._profile


class _Begin:
    """The beginning of a call, on the host and on the device."""

    def __init__(self) -> None:
        self._event: Any = None
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
        self._ns = time.perf_counter_ns()

    def times_of(self, log: OperatorLog) -> dict[str, Any]:
        """Returns seconds since the beginning, by operator and lane."""
        device, host = dict[str, Any](), dict[str, Any]()
        if any(call.events for call in log.calls):
            torch.cuda.synchronize()
        for number, call in enumerate(log.calls):
            start, end = (call.start_ns - self._ns) / 1e9, (call.end_ns - self._ns) / 1e9
            host[str(number)] = {f"thread {call.thread}": {"start": start, "kern": start, "end": end}}
            if call.events is not None and self._event is not None:
                start, end = (self._event.elapsed_time(one) / 1e3 for one in call.events)
            device[str(number)] = {call.device: {"start": start, "kern": start, "end": end}}
        return {"device": device, "host": host}


def trace(*args: Any, symbolic: bool = False, profiling: bool = False, **others: Any) -> Any:
    """Decorates a function with `@trace` or `@trace(symbolic=True, profiling=True)`; nothing is compiled.

    Args:
        *args: The function, or nothing.
        symbolic: Has no effect; MegEngine would compile the function.
        profiling: Whether to measure each operator of a call; the method `get_profile` of the function returns the
            result.
        **others: Arguments in `FOR_MEGENGINE`.

    Raises:
        UsageError: An argument is unknown.
    """
    del symbolic
    unknown = [name for name in others if name not in FOR_MEGENGINE]
    if unknown or len(args) > 1:
        raise UsageError(f"unknown arguments {', '.join(unknown) or f'{len(args)} functions'}; choose from symbolic, "
                         f"profiling, {', '.join(FOR_MEGENGINE)}")
    if args:
        return Traced(args[0], profiling=profiling)
    return lambda function: Traced(function, profiling=profiling)
