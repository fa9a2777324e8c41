"""The time pass: time per module and part of a step, with nothing else switched on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from distprof.contract.tables import TableRow
from distprof.model.modules import Site
from distprof.recording.passes.protocol import Pass, PassContext
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
