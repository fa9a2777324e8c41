"""Makes the text of `distprof critical-path`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof.contract.problems import RecordedLightly
from distprof.merge.commands.incomplete import fail_if_incomplete
from distprof.merge.critical.critical_path import critical_path
from distprof.merge.critical.replayable import chosen_steps, open_replayable
from distprof.merge.run.open_run import NO_SIZES
from distprof.merge.text.critical import CriticalShown, critical_data, render
from distprof.merge.totals.description import problems_of
from distprof.merge.totals.step_time import step_time
from distprof.reporters.page import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalView:
    """What is shown, and how."""

    steps: Sequence[int] = ()
    """Those with a timeline without."""
    top: int | None = None
    """Rows of a table; all without, 15 in text."""
    as_json: bool = False


def critical_paths(path: Path, *more: Path, view: CriticalView, strict: bool = False,
                   sizes: Mapping[str, int] = NO_SIZES) -> str:
    """The longest chains of the steps of a run as text.

    Args:
        path: A run directory, or traces of other programs.
        *more: Further run directories of the same job.
        view: Of which steps, and how.
        strict: Fail where something is missing.
        sizes: Axis of the device mesh -> size, in place of what the run says.

    Raises:
        DataError: The run cannot be read, or its ranks cannot be put into one graph.
        UsageError: There is no such step.
        IncompleteError: Something is missing and `strict` is set.
    """
    found = open_replayable(path, *more, sizes=sizes)
    problems = problems_of(found.run, found.clock)
    fail_if_incomplete(problems, strict=strict)
    chain = critical_path(found.program, found.job, chosen_steps(found, view.steps))
    if view.as_json:
        return json.dumps(critical_data(found, chain, top=view.top, with_chain=bool(view.steps)), indent=1)
    lightly = [one for one in found.run.remarks if isinstance(one, RecordedLightly)]
    shown = CriticalShown(run=found.run, clock=found.clock, path=chain, rows=found.program.rows, top=view.top,
                          guessed=found.guessed, on_device=found.on_device,
                          remarks=(*lightly, *(found.program.remarks if not view.steps else ())),
                          problems=problems, paths=(path, *more), step_time=step_time(found.recorded))
    return render(shown, Page())
