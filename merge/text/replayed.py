"""What `critical-path` and `whatif` show alike: the run that was replayed, and what may be wrong about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof.contract.problems import Problem
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run
from distprof.merge.text.phrases import clock_line, rank_list
from distprof.merge.text.problems import show_problems
from distprof.merge.totals.step_time import StepTime
from distprof.reporters.page import Page
from distprof.units import counted, spans


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedShown:
    """What is to be shown of a replay."""

    run: Run
    clock: Clock
    top: int | None
    """Rows of a table, where they were asked for."""
    guessed: Sequence[int]
    """Ranks of whose waits many are known from other ranks alone."""
    problems: Sequence[Problem]
    paths: Sequence[Path]
    step_time: StepTime | None
    """Of the job."""
    on_device: bool = False
    """Whether ranks worked on a device, which with its host is taken for one chain of work."""


def first_line(shown: ReplayedShown, steps: Sequence[int]) -> str:
    """Ranks and steps."""
    return f"{counted(len(shown.run.ranks), 'rank')}, {counted(len(steps), 'step')} ({spans(steps)})"


def doubts(shown: ReplayedShown, *, so: str = "") -> Iterator[str]:
    """What a replay may take for something else.

    Args:
        shown: The run.
        so: What follows for work that may be waiting.
    """
    missing = shown.run.missing
    if missing:
        yield (f"what {rank_list(missing)} did is unknown: time that others waited for "
               f"{'it' if len(missing) == 1 else 'them'} counts as moving")
    if shown.on_device:
        yield ("a device and its host count as one chain of work: a kernel that runs while the host is late is on the "
               "path, though with a shorter kernel the step may take as long; `distprof comms` shows how long devices "
               "wait for their hosts")
    if shown.guessed:
        yield (f"many waits of {rank_list(shown.guessed)} are inferred from other ranks: some of the work there may be "
               f"waiting{so}")


def last_lines(shown: ReplayedShown, page: Page) -> None:
    """Problems of the run and its clock."""
    show_problems(shown.run.remarks, shown.problems, page)
    page.line(clock_line(shown.clock.to_json()))
    page.line()
