"""The classes of the passes; their names, order and usual lengths are in distprof/contract/passes.py.

Passes of a few lines are defined here. The time pass measures the time per module and part of a step, with nothing else
switched on. A lightly recorded rank goes through the same steps as the others, but records less: parts of steps, times
of modules and arrivals of collectives as everywhere, without the profiler and without counting operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from distprof.contract.passes import EXECUTION, MEMORY, SYNC, TRACE
from distprof.contract.tables import TableRow
from distprof.model.compiled import ForcedEager
from distprof.model.modules import Site
from distprof.recording.passes.count import CountSteps
from distprof.recording.passes.execution import ExecutionSteps
from distprof.recording.passes.labelled import ArrivalSteps, TraceSteps
from distprof.recording.passes.memory import MemorySteps
from distprof.recording.passes.protocol import Pass, PassContext, WaitSteps
from distprof.recording.passes.sync import SyncSteps
from distprof.timing.latency import Latency
from distprof.timing.time_pass import TimePass

LATENCY_COLUMNS = {f"{phase}{own}_time_ns": f"{phase}{own}_ns" for phase in ("fwd", "bwd", "recompute")
                   for own in ("", "_self")}
"""Column of modules.parquet -> field of `Latency`."""


class TimeSteps(TimePass, Pass):
    """Steps with module timers."""

    name = "time"
    slowed_by_compilation = True

    def __init__(self, context: PassContext) -> None:
        TimePass.__init__(self, context.scopes, context.guard)

    def module_columns(self, sites: Sequence[Site]) -> Sequence[TableRow]:
        """Returns calls and times per step."""
        if not self.num_steps:
            return ()
        found, none = self.latencies(), Latency()
        return [{"calls": latency.calls, **{column: getattr(latency, name) for column, name in LATENCY_COLUMNS.items()}}
                for latency in (found.get(site, none) for site in sites)]

    def step_columns(self) -> Sequence[TableRow]:
        """Returns the parts of each step."""
        return [asdict(self.split(index)) for index in range(self.num_steps)]


PASS_CLASSES: tuple[type[Pass], ...] = (
    WaitSteps, CountSteps, TimeSteps, SyncSteps, ExecutionSteps, TraceSteps, MemorySteps, ArrivalSteps)
"""All passes. A new one is a file next to these, an entry here and one in the contract."""


class LightCountSteps(Pass):
    """Steps without the counter.

    Compiled code is off all the same: what it communicates, and in which order, may differ from what the other ranks do
    meanwhile, and ranks would wait for each other forever.
    """

    name = "count"

    def __init__(self, context: PassContext) -> None:
        self._eager = ForcedEager()

    def start(self) -> None:
        self._eager.start()

    def stop(self) -> None:
        self._eager.stop()


class LightTraceSteps(ArrivalSteps):
    """Steps in which collectives are labelled, while other ranks have a timeline."""

    name = TRACE


class LightSyncSteps(Pass):
    """Steps that are only numbered."""

    name = SYNC


class LightExecutionSteps(Pass):
    """Steps that are only numbered."""

    name = EXECUTION


class LightMemorySteps(Pass):
    """Steps that are only numbered."""

    name = MEMORY


LIGHT_CLASSES: tuple[type[Pass], ...] = (
    WaitSteps, LightCountSteps, TimeSteps, LightSyncSteps, LightExecutionSteps, LightTraceSteps, LightMemorySteps,
    ArrivalSteps)
"""The passes of a lightly recorded rank, with the order and names of `PASS_CLASSES`."""
