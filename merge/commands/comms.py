"""Makes the text of `distprof comms`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from distprof.merge.commands.dumps import dumps_alone, dumps_text
from distprof.merge.commands.incomplete import fail_if_incomplete
from distprof.merge.cost.choice import Choice
from distprof.merge.cost.matrix import bytes_between
from distprof.merge.run.open_run import NO_SIZES
from distprof.merge.text.communication.comms import summarise
from distprof.merge.text.communication.comms_tables import comms_data, list_slowest, show_matrix
from distprof.merge.text.communication.timeline import draw_timeline
from distprof.merge.text.problems import show_problems
from distprof.merge.totals.description import problems_of
from distprof.merge.totals.findings import Findings, findings_of
from distprof.merge.watch.job_watch import known_state
from distprof.reporters.page import Page
from distprof.terminal import quoted_all


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown of it."""

    slowest: int | None = None
    """So many collectives as a table."""
    timeline: bool = False
    matrix: bool = False
    as_json: bool = False

    @property
    def is_summary(self) -> bool:
        """True where nothing special was asked for."""
        return self.slowest is None and not self.timeline and not self.matrix


def comms(path: Path, *more: Path, choice: Choice, view: View, strict: bool = False,
          sizes: Mapping[str, int] = NO_SIZES) -> str:
    """Communication of a run as text.

    Args:
        path: A run directory, traces of other programs, or dumps of torch's flight recorder.
        *more: Further run directories of the same job.
        choice: Which collectives.
        view: What of them.
        strict: Fail where something is missing.
        sizes: Axis of the device mesh -> size, in place of what the run says.

    Raises:
        DataError: The run cannot be read.
        UsageError: There is no such op, group or step.
        IncompleteError: Something is missing and `strict` is set.
    """
    if not more and (dumps := dumps_alone(path)) is not None:
        fail_if_incomplete(dumps.problems, strict=strict)
        return dumps_text(dumps, as_json=view.as_json)
    found = findings_of(path, *more, choice=choice, sizes=sizes, of_rows=view.timeline or view.matrix)
    fail_if_incomplete(problems_of(found.run, found.clock), strict=strict)
    if view.as_json:
        return json.dumps(comms_data(found), indent=1)
    return _render(found, view, (path, *more))


def _render(found: Findings, view: View, paths: Sequence[Path]) -> str:
    page = Page()
    if view.is_summary:
        summarise(found, page, known_state(found.run))
    if view.slowest is not None:
        list_slowest(found.collectives, view.slowest, found.clock, page)
        page.line()
    if view.timeline:
        draw_timeline(found.rows, found.run, found.clock, page)
    if view.matrix:
        counted = found.rows.filter(pl.col("step").is_in(found.steps)) if found.steps else found.rows
        show_matrix(bytes_between(counted), found.run.world_size, found.steps, page)
    _foot(found, paths, view, page)
    return page.text()


def _foot(found: Findings, paths: Sequence[Path], view: View, page: Page) -> None:
    show_problems(found.run.remarks, problems_of(found.run, found.clock), page)
    where = quoted_all(paths)
    if view.is_summary:
        last = f" --step {found.steps[-1]}" if found.steps else ""
        page.line()
        page.line(f"Next: distprof comms --timeline{last} {where}")
        page.line(f"      distprof comms --slowest 20 {where}")
