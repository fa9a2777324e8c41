"""The classes of the passes; their names, order and usual lengths are in distprof/contract/passes.py.

Here are those that take a few lines. The time pass: time per module and part of a step, with nothing else switched on.
A rank that is recorded lightly goes through the same steps as the others, with less in them. Steps with their parts,
times of modules and arrivals of collectives are recorded as everywhere; there is no profiler, and no operator is
counted.
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
    """Steps under module timers."""

    name = "time"
    slowed_by_compilation = True

    def __init__(self, context: PassContext) -> None:
        TimePass.__init__(self, context.scopes, context.guard)

    def module_columns(self, sites: Sequence[Site]) -> Sequence[TableRow]:
        """Calls and times a step."""
        if not self.num_steps:
            return ()
        found, none = self.latencies(), Latency()
        return [{"calls": latency.calls, **{column: getattr(latency, name) for column, name in LATENCY_COLUMNS.items()}}
                for latency in (found.get(site, none) for site in sites)]

    def step_columns(self) -> Sequence[TableRow]:
        """The parts of each step."""
        return [asdict(self.split(index)) for index in range(self.num_steps)]


PASS_CLASSES: tuple[type[Pass], ...] = (
    WaitSteps, CountSteps, TimeSteps, SyncSteps, ExecutionSteps, TraceSteps, MemorySteps, ArrivalSteps)
"""A new pass is a file beside these, a row here and a row in the contract."""


class LightCountSteps(Pass):
    """Steps without the counter. Compiled code is off all the same: what it communicates, and in which order, may
    differ from what the others do meanwhile, and ranks would wait for each other for ever.
    """

    name = "count"

    def __init__(self, context: PassContext) -> None:
        self._eager = ForcedEager()

    def start(self) -> None:
        self._eager.start()

    def stop(self) -> None:
        self._eager.stop()


class LightTraceSteps(ArrivalSteps):
    """Steps in which collectives are labelled, while others have a timeline."""

    name = TRACE


class LightSyncSteps(Pass):
    """Steps that are only numbered."""

    name = SYNC


class LightExecutionSteps(Pass):
    """Likewise."""

    name = EXECUTION


class LightMemorySteps(Pass):
    """Likewise."""

    name = MEMORY


LIGHT_CLASSES: tuple[type[Pass], ...] = (
    WaitSteps, LightCountSteps, TimeSteps, LightSyncSteps, LightExecutionSteps, LightTraceSteps, LightMemorySteps,
    ArrivalSteps)
"""In the order of `PASS_CLASSES`, with the same names."""
