"""Which commands there are, and which of them come next."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection
from pathlib import Path

from distprof.contract.paths import MERGED, TRACE_JSON, TRACE_TAR
from distprof.launch import commands
from distprof.terminal import quoted

AFTER_MERGE = ("report", "view", "comms", "stats", "critical-path")
"""Those that show most first."""
SHOWN = 3


def command_names() -> list[str]:
    """Of all commands, by name: one a file in `commands/`."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))


def next_commands(run: Path, *, but: Collection[str] = ()) -> list[str]:
    """Command lines that show a run which was merged, without some commands, and `view` where there is a trace."""
    names, left_out = command_names(), {*but, "view"} if _lacks_trace(run / MERGED) else but
    return [f"distprof {name} {quoted(run)}" for name in AFTER_MERGE if name in names and name not in left_out][:SHOWN]


def _lacks_trace(merged: Path) -> bool:
    """True for the merge of a job that ended before its timeline, or had none in its plan."""
    return merged.is_dir() and not any((merged / name).is_file() for name in (TRACE_JSON, TRACE_TAR))
