"""The tables of all ranks as totals need them: rows of steps, and sums of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from distprof.contract.problems import Unreadable
from distprof.contract.tables import STEPS
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import Loaded, read_table
from distprof.merge.totals.modules import read_modules
from distprof.merge.totals.operator_sums import OperatorSums, read_operators
from distprof.merge.totals.parameters import HeldParameters, read_parameters
from distprof.merge.totals.step_time import StepTime, step_time


@dataclass(frozen=True, kw_only=True)
class RecordedTables:
    """The tables that totals are made from; each is read once per command and passed on.

    Of each rank, its steps and a few numbers are kept; the rest takes as much memory as for one model.
    """

    steps: pl.DataFrame
    operators: OperatorSums
    modules: pl.DataFrame
    """Rows of `MERGED_MODULES`."""
    parameters: HeldParameters
    problems: Sequence[Unreadable]

    @cached_property
    def step_time(self) -> StepTime | None:
        """The step time over these steps."""
        return step_time(self.steps)


def read_tables(run: Run, steps: Loaded | None = None, *, holders: Run | None = None) -> RecordedTables:
    """Reads the tables of all ranks.

    Args:
        run: The run.
        steps: Its `STEPS`, if they were already read.
        holders: The run with the ranks whose `PARAMETERS` are read; None: all.
    """
    operators, of_ops = read_operators(run)
    modules = read_modules(run)
    parameters, of_parameters = read_parameters(run, holders)
    steps = steps or read_table(run, STEPS)
    return RecordedTables(
        steps=steps.rows, operators=operators, modules=modules.rows, parameters=parameters,
        problems=[problem for one in (of_ops, steps, modules, of_parameters) for problem in one.problems])
