"""The checks of `distprof doctor` of torch and accelerators: what is available, and what a recording lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch

from distprof.counting.invocation import has_grouped_product_on_cpu
from distprof.model.compiled import can_skip_compiling
from distprof.peaks.published import device_peaks
from distprof.process.accelerators import KINDS, MEASURES_PEAK
from distprof.recording.compile_log import can_log_compilations
from distprof.recording.hang.report import has_flight_recorder
from distprof.recording.tracing.timeline import activity_of
from distprof.timing.stopwatch import has_events


def accelerator_lines() -> Iterator[tuple[str, str]]:
    """Yields the level and text of each line about accelerators."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        yield "ok", "no accelerator: distprof measures times on the CPU"
        return
    kind, module = found.type, getattr(torch, found.type)
    names = _names(kind, module)
    yield "ok", f"{len(names)} {kind.upper()}: {', '.join(sorted(set(names)))}"
    yield from (("warn", text) for text in _lacking(kind, module))
    yield from (("warn", f"no peak rates of {name} are known: MFU and rooflines need --peak")
                for name in sorted(set(names)) if device_peaks(name) is None)


def _names(kind: str, module: ModuleType) -> list[str]:
    named: Callable[[int], Any] = getattr(module, "get_device_name", lambda _: kind)
    return [str(named(index)) for index in range(torch.accelerator.device_count())]


def _lacking(kind: str, module: ModuleType) -> Iterator[str]:
    """Yields what the backend of an accelerator lacks, and the consequences."""
    if kind not in KINDS:
        yield f"the backend {kind} is unknown to distprof: jobs on it are measured on the host"
        return
    if not has_events(kind):
        yield f"{kind} has no events with times: modules, steps and collectives are timed on the host"
    if activity_of(kind) not in torch.profiler.supported_activities():
        yield f"torch.profiler has no timeline of {kind} devices: kernels and their waits are unknown"
    if not hasattr(module, MEASURES_PEAK):
        yield f"{kind} does not report allocated memory: peak memory of devices is unknown"


class Feature(NamedTuple):
    """A feature of torch that may be missing."""

    is_there: Callable[[], bool]
    without: str
    """Text for the case that it is missing, and the consequences for a recording."""


FEATURES = (
    Feature(has_grouped_product_on_cpu,
            "no grouped matrix product for the CPU: mixture-of-experts models that use it run and are counted on GPUs "
            "only"),
    Feature(has_flight_recorder, "no flight recorder: stuck.json of a hanging rank has stacks but no collectives"),
    Feature(can_log_compilations, "no compiler report: `distprof waits` cannot show what torch.compile does"),
    Feature(can_skip_compiling, "hooks cannot be kept from being compiled: torch.compile takes longer while "
                                "recording"),
)


def lacking() -> list[str]:
    """Returns one line for each missing feature."""
    return [feature.without for feature in FEATURES if not feature.is_there()]
