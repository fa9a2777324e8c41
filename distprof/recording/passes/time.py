"""The time pass: time per module and part of a step, with nothing else switched on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from distprof.contract.columns import TableRow
from distprof.model.modules import Site
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.timing.latency import Latency
from distprof.timing.time_pass import TimePass

LATENCY_COLUMNS = {f"{phase}{own}_time_ns": f"{phase}{own}_ns" for phase in ("fwd", "bwd", "recompute")
                   for own in ("", "_self")}
"""Column of modules.parquet -> field of `Latency`."""


class TimeSteps(Pass):
    """Steps under module timers."""

    name = "time"
    slowed_by_compilation = True

    def __init__(self, context: PassContext) -> None:
        self._timers = TimePass(context.scopes, context.guard)

    def start(self) -> None:
        self._timers.start()

    def stop(self) -> None:
        self._timers.stop()

    def next_step(self) -> None:
        self._timers.next_step()

    def restart_step(self) -> None:
        self._timers.restart_step()

    def optimizer_begins(self) -> None:
        self._timers.optimizer_begins()

    def optimizer_ends(self) -> None:
        self._timers.optimizer_ends()

    def module_columns(self, sites: Sequence[Site]) -> Sequence[TableRow]:
        """Calls and times a step."""
        if not self._timers.num_steps:
            return ()
        found, none = self._timers.latencies(), Latency()
        return [{"calls": latency.calls, **{column: getattr(latency, name) for column, name in LATENCY_COLUMNS.items()}}
                for latency in (found.get(site, none) for site in sites)]

    def step_columns(self) -> Sequence[TableRow]:
        """The parts of each step."""
        return [asdict(self._timers.split(index)) for index in range(self._timers.num_steps)]
