"""distprof finds the rank and the layer that make a distributed PyTorch job slow.

`distprof run train.py` records an unmodified script; `record` does the same from inside a script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distprof.counting.count import Counts as Counts
    from distprof.counting.count import count as count
    from distprof.formulas.user_formulas import register_flops as register_flops
    from distprof.merge.run_frames import RunFrames as RunFrames
    from distprof.merge.run_frames import read_run as read_run
    from distprof.peers.reconcile import reconcile as reconcile
    from distprof.profiling.profile import Profile as Profile
    from distprof.profiling.profile import profile as profile
    from distprof.profiling.throughput import throughput as throughput
    from distprof.recording.active import record as record
    from distprof.recording.plan import StepPlan as StepPlan
    from distprof.recording.recorder import Recorder as Recorder

__version__ = "0.1.0"

_HOMES = {
    "Counts": "distprof.counting.count",
    "Profile": "distprof.profiling.profile",
    "Recorder": "distprof.recording.recorder",
    "RunFrames": "distprof.merge.run_frames",
    "StepPlan": "distprof.recording.plan",
    "count": "distprof.counting.count",
    "profile": "distprof.profiling.profile",
    "read_run": "distprof.merge.run_frames",
    "reconcile": "distprof.peers.reconcile",
    "record": "distprof.recording.active",
    "register_flops": "distprof.formulas.user_formulas",
    "throughput": "distprof.profiling.throughput",
}

NO_TORCH = ("distprof.merge.", "distprof.recording.plan")
"""Prefixes of modules that do not need torch."""

__all__ = [
    "Counts",
    "Profile",
    "Recorder",
    "RunFrames",
    "StepPlan",
    "__version__",
    "count",
    "profile",
    "read_run",
    "reconcile",
    "record",
    "register_flops",
    "throughput",
]


def __getattr__(name: str) -> Any:
    # torch is imported by the first name that needs it, not by `import distprof`
    if name in _HOMES:
        from importlib import import_module

        if not _HOMES[name].startswith(NO_TORCH):
            from distprof.needs import import_torch

            import_torch(f"use distprof.{name}")  # before our module: with `distprof run`, this starts the recorder
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'distprof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
