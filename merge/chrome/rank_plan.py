"""Defines what is decided about the ranks of a merged trace before their events are read for the second time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from distprof.merge.chrome.drawing.drawn import DrawnCollective, DrawnTensor
from distprof.merge.chrome.numbering import NUMBERS_PER_RANK
from distprof.merge.chrome.step_selection import Steps
from distprof.merge.chrome.survey import ALL, Survey
from distprof.merge.clock.model import RankClock
from distprof.merge.layout.event_selection import EventSelection
from distprof.merge.scan.trace_file import TraceFile

if TYPE_CHECKING:
    from distprof.merge.chrome.drawing.collectives import Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What is decided about a rank."""

    trace: TraceFile
    rank: int
    title: str
    """Like `rank 3 | tp1 dp1 | host7`."""
    survey: Survey
    clock: RankClock
    origin_ns: int
    """The time on the common clock that becomes 0."""
    tags: dict[str, int]
    steps: Steps
    numbers: int = NUMBERS_PER_RANK
    selection: EventSelection = ALL
    table_metadata: dict[str, str] = field(default_factory=dict)
    collectives: Iterable[DrawnCollective] = ()
    """What is drawn of communication; only set where the rank is written, because it takes memory."""
    tensors: list[DrawnTensor] = field(default_factory=list)
    draws_memory: bool = False
    """True if counters of the allocators are drawn."""
    draws_queues: bool = False
    """True if counters of the queues of devices are drawn."""
    traced_steps: Sequence[tuple[int, int, int]] | None = None
    """Start, end and number of the steps in the timeline; None if the timeline itself marks its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """All ranks that are written, and the time that becomes 0."""

    ranks: list[RankPlan]
    origin_ns: int
    remarks: list[str]
    drawing: Drawing | None
    """Drawing of communication; None if none is drawn."""
    counters_pid: int
    """Pid of the process with the counters of the whole job."""

    def whole(self, plan: RankPlan) -> RankPlan:
        """Returns a plan with the drawing of its rank."""
        return plan if self.drawing is None else replace(plan, collectives=self.drawing.of_rank(plan.rank))
