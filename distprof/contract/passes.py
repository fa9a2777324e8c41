"""The passes of a recording, one row each: steps are recorded in this order, each pass once."""

from __future__ import annotations

from dataclasses import dataclass

WAIT = "wait"
"""The pass in which nothing is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """A way to record steps; distprof/recording/passes/ has the code under the same name."""

    name: str
    steps: int
    """Number of steps if the user gives none."""
    doc: str


PASSES = (
    PassRow(name=WAIT, steps=2, doc="Nothing is switched on: warm-up."),
    PassRow(name="count", steps=1, doc="The FLOP counter is on."),
    PassRow(name="time", steps=3, doc="Module timers alone are on."),
    # the profiler warms up in the first step; fewer do not suffice to tell habit from chance
    PassRow(name="trace", steps=6, doc="The profiler is on, and every collective is labelled."),
)
PASS_NAMES = tuple(row.name for row in PASSES)
