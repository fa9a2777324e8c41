"""Runs programs in turns, given their command lines, and returns the costs of all runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from measuring.processes import Cost, timed
from measuring.tables import megabytes, spread

PATIENCE_S = 60
"""A program runs again as long as all its runs together take at most this many seconds."""
COSTS = ("wall s", "CPU s", "peak MB", "others")
Command = Sequence[str]


def in_turns(commands: Mapping[str, Command], repeat: int, *, before: Callable[[], None] = lambda: None) -> (
        dict[str, list[Cost]]):
    """Runs all programs once, then again.

    Args:
        commands: Name of the program -> command line.
        repeat: Maximum number of runs of each; see `PATIENCE_S`.
        before: Called before each run.

    Raises:
        Failed: The exit code of a program is not 0.
    """
    found: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(repeat):
        for name, command in commands.items():
            if again([cost.wall_s for cost in found[name]]):
                before()
                found[name].append(timed(command))
    return found


def again(runs_s: Sequence[float]) -> bool:
    """Returns whether one more run is likely to stay within `PATIENCE_S`."""
    return not runs_s or sum(runs_s) + min(runs_s) <= PATIENCE_S


def cells(costs: Sequence[Cost]) -> list[str]:
    """Returns the cells for `COSTS`: median (minimum .. maximum) of times, peak memory, mean load by others."""
    return [spread([cost.wall_s for cost in costs], 2), spread([cost.cpu_s for cost in costs], 2),
            megabytes(max(cost.max_rss_bytes for cost in costs)),
            f"{sum(cost.others_cores for cost in costs) / len(costs):.1f}"]


def cpu_s(costs: Sequence[Cost]) -> float:
    """Returns the processor time of the least disturbed run, the minimum."""
    return min(cost.cpu_s for cost in costs)


def empty(folder: Path) -> None:
    """Creates an empty folder, and syncs, so that no writes of earlier runs are pending."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()
