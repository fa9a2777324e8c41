"""The passes of a recording, one row each: steps are recorded in this order, each pass once."""

from __future__ import annotations

from dataclasses import dataclass

WAIT = "wait"
"""The pass in which nothing is measured."""
COUNT = "count"
"""The pass in which operators are counted."""
TIME = "time"
"""The pass with timers of modules."""
TRACE = "trace"
"""The pass with a timeline."""
MEMORY = "memory"
"""The pass with a timeline of allocations."""
EXECUTION = "execution"
"""The pass in which torch's observer of execution traces is on."""
SYNC = "sync"
"""The pass that looks for what blocks a rank."""
ARRIVALS = "arrivals"
"""The pass without a timeline in which collectives are labelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """A way to record steps; distprof/recording/passes/ has the code under the same name."""

    name: str
    steps: int
    """Number of steps if the user gives none."""
    doc: str
    with_few_ranks: tuple[tuple[int, int], ...] = ()
    """(ranks, steps), ascending: so many steps for at most so many ranks."""
    optional: bool = False
    """True where a job may end at any step of it and is recorded completely."""

    def steps_of(self, num_ranks: int) -> int:
        """Number of steps if the user gives none."""
        return next((steps for most, steps in self.with_few_ranks if num_ranks <= most), self.steps)


PASSES = (
    PassRow(name=WAIT, steps=2, doc="Warm-up: nothing is recorded."),
    PassRow(name=COUNT, steps=1, doc="The FLOP counter runs."),
    PassRow(name=TIME, steps=3, doc="Only module timers run."),
    PassRow(name=SYNC, steps=0, doc="Calls that may block the rank are recorded with their line of the script; only "
                                    "on request."),
    PassRow(name=EXECUTION, steps=0, doc="The profiler and torch's execution trace observer run."),
    # the profiler warms up in the first step; fewer do not suffice to tell habit from chance
    PassRow(name=TRACE, steps=6, doc="The profiler runs, and every collective is labelled."),
    PassRow(name=MEMORY, steps=0, doc="The profiler runs, and every allocation is recorded."),
    # one rank has nobody to be late for: a few steps that nothing slows down
    # what happens in every third step is told from chance by the product of ranks and steps
    PassRow(name=ARRIVALS, steps=20, with_few_ranks=((1, 8), (3, 32)), optional=True,
            doc="Collectives are labelled; nothing else runs."),
)
PASS_NAMES = tuple(row.name for row in PASSES)
USUAL = tuple(row for row in PASSES if row.steps)
"""Those that are recorded without being asked for."""
