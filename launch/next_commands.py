"""Which commands there are, and which of them come next."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from distprof.contract.paths import MERGED, TRACE_JSON, TRACE_TAR
from distprof.launch import commands
from distprof.terminal import quoted

AFTER_MERGE = {
    "report": "all findings on one page",
    "comms": "which ranks wait for which ranks, and why",
    "view": "the timeline of all ranks, in your browser",
    "stats": "totals, step times and the slowest modules",
    "critical-path": "the critical path of a step",
}
"""Those that show most first, with what they show."""
SHOWN = 3


def command_names() -> list[str]:
    """Of all commands, by name: one a file in `commands/`."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))


def next_commands(run: Path) -> list[str]:
    """Command lines that show a run which was merged; `view` where there is a trace."""
    names = [name for name in AFTER_MERGE if name != "view" or not _lacks_trace(run / MERGED)]
    return [f"distprof {name} {quoted(run)}" for name in names[:SHOWN]]


def _lacks_trace(merged: Path) -> bool:
    """True for the merge of a job that ended before its timeline, or had none in its plan."""
    return merged.is_dir() and not any((merged / name).is_file() for name in (TRACE_JSON, TRACE_TAR))
