"""What a pass is to the recorder. The plainest is the wait pass: nothing is on while the script warms up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from distprof.contract.passes import WAIT
from distprof.contract.tables import TableRow
from distprof.model.modules import Site
from distprof.model.scopes import Guard, ModuleScopes
from distprof.recording.communication.labels import CollectiveRecorder
from distprof.recording.line_sampler import LineSampler
from distprof.recording.run_directory import RankFolder
from distprof.recording.tracing.profiler_sessions import ProfilerSessions


@dataclass(frozen=True, slots=True, kw_only=True)
class PassContext:
    """What the recorder gives to every pass."""

    scopes: ModuleScopes
    guard: Guard
    note: Callable[[str], None]
    """Writes a line to stderr and keeps it in rank.json."""
    tags: Callable[[], dict[str, Any]]
    """Rank, sizes and ids that every file carries."""
    folder: Callable[[], Path | None]
    """Where files of this rank are now; None before there is a folder."""
    step: Callable[[], int]
    """The running step, from 0."""
    phase: Callable[[], str | None]
    """`optimizer` where an optimizer runs, and nothing else inside of it; else None."""
    are_work: Callable[[Site], bool]
    """Whether calls of a root without gradient are part of every step, as the steps by now tell."""
    collectives: CollectiveRecorder
    """Shared by the passes that label collectives, one after the other."""
    lines: LineSampler
    """Likewise."""
    sessions: ProfilerSessions
    """Shared by the passes with a timeline."""


class Pass:
    """Steps that are recorded in one way. Subclasses override what they need; here nothing is done.

    The calls, in this order: `start`, for each step `restart_step` and `next_step`, `stop`. Nothing may be left
    in the process after `stop`. What was measured is asked for afterwards, and whenever tables are written.
    """

    name: ClassVar[str]
    """As in the plan and in steps.parquet."""
    slowed_by_compilation: ClassVar[bool] = False
    """True where a step in which torch.compile compiles spoils the means."""
    labels_collectives: ClassVar[bool] = False
    """True where rows of collectives.parquet come from it."""
    lost_elsewhere: ClassVar[str | None] = None
    """What is lost, in words, if the recording ends while the thread of the steps hangs."""

    def __init__(self, context: PassContext) -> None:
        """Prepares without touching the process."""

    def start(self) -> None:
        """Switches on, between two steps."""

    def stop(self) -> None:
        """Switches off and takes everything away."""

    def in_operator(self) -> bool:
        """True where this thread was interrupted at a place where the pass cannot be stopped."""
        return False

    def next_step(self) -> None:
        """A step ended; steps that never end are not in the results."""

    def restart_step(self) -> None:
        """The step begins only now: what happened since `next_step` or `start` belongs to none."""

    def optimizer_begins(self) -> None:
        """optimizer.step() is called."""

    def optimizer_ends(self) -> None:
        """It returned."""

    def closure_begins(self) -> None:
        """optimizer.step() calls its closure, in which forward and backward run."""

    def closure_ends(self) -> None:
        """The closure returned, or raised."""

    def module_columns(self, sites: Sequence[Site]) -> Sequence[TableRow]:
        """Columns of modules.parquet, one row per site in this order; no rows at all while nothing is known."""
        return ()

    def step_columns(self) -> Sequence[TableRow]:
        """Columns of steps.parquet, one row per step of this pass."""
        return ()

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        """Writes tables and files of its own.

        Args:
            folder: Where they go.
            steps: Rows of all steps so far.
            ended: False where more steps of other passes follow that are needed. May be true several times.
            elsewhere: True on another thread than that of the steps, which hangs.
        """


class WaitSteps(Pass):
    """Steps that are only numbered."""

    name = WAIT
