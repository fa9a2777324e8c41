"""MegEngine's profiler for torch programs, as a drop-in: the same names, arguments, files and tables.

    from distprof.compat.megengine import Profiler, profile

`python -m distprof.compat.megengine.profile_analyze` prints tables of operators, and
`python -m distprof.compat.megengine.profiler` profiles a script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distprof.compat.megengine.merged_events import merge_trace_events as merge_trace_events
    from distprof.compat.megengine.profiled_step import trace as trace
    from distprof.compat.megengine.regions import Profiler as Profiler
    from distprof.compat.megengine.regions import is_profiling as is_profiling
    from distprof.compat.megengine.regions import profile as profile
    from distprof.compat.megengine.regions import scope as scope

_HOMES = {"Profiler": "regions", "is_profiling": "regions", "merge_trace_events": "merged_events",
          "profile": "regions", "scope": "regions", "trace": "profiled_step"}

__all__ = ["Profiler", "is_profiling", "merge_trace_events", "profile", "scope", "trace"]


def __getattr__(name: str) -> Any:
    # lazily, because tables are printed without torch
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
