"""Programs that take turns: command lines come in, what each run of each costs goes out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from measuring.processes import Cost, timed
from measuring.tables import megabytes, spread

PATIENCE_S = 60
"""A program runs again as long as all its runs take no longer."""
COSTS = ("wall s", "CPU s", "peak MB", "others")
Command = Sequence[str]


def in_turns(commands: Mapping[str, Command], repeat: int, *, before: Callable[[], None] = lambda: None) -> (
        dict[str, list[Cost]]):
    """Runs everyone once, then again.

    Args:
        commands: By the name of the program.
        repeat: Runs of each, at most: see `PATIENCE_S`.
        before: Is called before each run.

    Raises:
        Failed: A program did not end with 0.
    """
    found: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(repeat):
        for name, command in commands.items():
            if again([cost.wall_s for cost in found[name]]):
                before()
                found[name].append(timed(command))
    return found


def again(runs_s: Sequence[float]) -> bool:
    """True where one more run is within the patience."""
    return not runs_s or sum(runs_s) + min(runs_s) <= PATIENCE_S


def cells(costs: Sequence[Cost]) -> list[str]:
    """Of a row of `COSTS`: medians (least .. most), the largest memory, and how busy the machine was in the mean."""
    return [spread([cost.wall_s for cost in costs], 2), spread([cost.cpu_s for cost in costs], 2),
            megabytes(max(cost.max_rss_bytes for cost in costs)),
            f"{sum(cost.others_cores for cost in costs) / len(costs):.1f}"]


def cpu_s(costs: Sequence[Cost]) -> float:
    """Of the run that was least disturbed."""
    return min(cost.cpu_s for cost in costs)


def empty(folder: Path) -> None:
    """Makes it, with nothing in it and nothing of earlier runs waiting to be written to disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()
