"""The interface of passes to the recorder. The simplest is the wait pass: nothing is on while the script warms up."""

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
    """What the recorder provides to every pass."""

    scopes: ModuleScopes
    guard: Guard
    note: Callable[[str], None]
    """Prints a line to stderr and keeps it in rank.json."""
    tags: Callable[[], dict[str, Any]]
    """Returns rank, sizes and ids, which every file carries."""
    folder: Callable[[], Path | None]
    """Returns the current folder of this rank's files; None until there is one."""
    step: Callable[[], int]
    """Returns the running step, from 0."""
    phase: Callable[[], str | None]
    """Returns `optimizer` while an optimizer runs and nothing else inside it; else None."""
    are_work: Callable[[Site], bool]
    """Returns whether calls of a root without gradients are part of every step, judging by the steps so far."""
    collectives: CollectiveRecorder
    """Shared by the passes that label collectives, which run one after the other."""
    lines: LineSampler
    """Shared by the same passes."""
    sessions: ProfilerSessions
    """Shared by the passes with a timeline."""


class Pass:
    """Steps that are recorded in one way. Subclasses override what they need; this class does nothing.

    The methods are called in this order: `start`, for each step `restart_step` and `next_step`, `stop`. Nothing may be
    left in the process after `stop`. Results are read afterwards, and whenever tables are written.
    """

    name: ClassVar[str]
    """The name in the plan and in steps.parquet."""
    slowed_by_compilation: ClassVar[bool] = False
    """True if compilation by torch.compile during a step falsifies the means."""
    labels_collectives: ClassVar[bool] = False
    """True if the pass contributes rows to collectives.parquet."""
    lost_elsewhere: ClassVar[str | None] = None
    """What is lost, as a message, if the recording ends while the thread of the steps hangs; None for nothing."""

    def __init__(self, context: PassContext) -> None:
        """Prepares without changing the process."""

    def start(self) -> None:
        """Switches on, between two steps."""

    def stop(self) -> None:
        """Switches off and removes everything from the process."""

    def in_operator(self) -> bool:
        """True if this thread was interrupted at a point where the pass cannot be stopped."""
        return False

    def next_step(self) -> None:
        """Ends a step; steps that never end are not part of the results."""

    def restart_step(self) -> None:
        """Begins the step only now: what happened since `next_step` or `start` belongs to no step."""

    def optimizer_begins(self) -> None:
        """Called before optimizer.step()."""

    def optimizer_ends(self) -> None:
        """Called after optimizer.step()."""

    def closure_begins(self) -> None:
        """Called when optimizer.step() calls its closure, in which forward and backward run."""

    def closure_ends(self) -> None:
        """Called when the closure has returned or raised."""

    def module_columns(self, sites: Sequence[Site]) -> Sequence[TableRow]:
        """Returns columns of modules.parquet, one row per site in this order; no rows while nothing is known."""
        return ()

    def step_columns(self) -> Sequence[TableRow]:
        """Returns columns of steps.parquet, one row per step of this pass."""
        return ()

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        """Writes the pass's own tables and files.

        Args:
            folder: The rank's folder.
            steps: Rows of all steps so far.
            ended: False if needed steps of other passes follow. May be true several times.
            elsewhere: True on another thread than that of the steps, which hangs.
        """


class WaitSteps(Pass):
    """Steps that are only numbered."""

    name = WAIT
