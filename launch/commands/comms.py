"""`distprof comms`: communication of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distprof.launch.options import (
    ATTEMPT,
    JSON,
    RUNS,
    SAME_HOST,
    STRICT,
    TIME_UNIT,
    given_runs,
    given_sizes,
    given_workers,
    mesh_sizes,
    worker_options,
)
from distprof.terminal import show

if TYPE_CHECKING:
    from distprof.merge.cost.choice import Choice
    from distprof.merge.totals.findings import Findings


@click.command()
@RUNS
@click.option("--op", metavar="all_reduce", help="Show only this op.")
@click.option("--group", metavar="NAME", help="Show only this process group, by name or description.")
@click.option("--step", type=int, metavar="N", help="Show only this step.")
@click.option("--slowest", type=click.IntRange(min=1), metavar="N",
              help="List the N longest collectives, including waiting.")
@click.option("--timeline", is_flag=True,
              help="Draw each collective on a time axis: arrival, waiting and transfer of every rank.")
@click.option("--matrix", is_flag=True, help="Show the bytes exchanged by each pair of ranks.")
@worker_options
@mesh_sizes
@SAME_HOST
@TIME_UNIT
@ATTEMPT
@JSON
@STRICT
def comms(runs: tuple[Path, ...], *, op: str | None, group: str | None, step: int | None, slowest: int | None,
          timeline: bool, matrix: bool, as_json: bool, strict: bool, attempt: int | None,
          workers: int | None, scheduler: str | None, **sizes: int | None) -> None:
    """Show communication: waiting, transfer, bandwidth, late ranks.

    RUN is a run directory, traces from torch.profiler, or dumps from torch's flight recorder. Several RUNs are run
    directories of one job whose hosts share no folder. --workers and --scheduler apply to traces and timelines; the
    collectives tables of a run directory are always read locally.
    """
    runs = given_runs(runs, attempt)
    from distprof.merge.cost.choice import Choice
    from distprof.merge.run.timelines import reading_in

    with reading_in(given_workers(workers, scheduler)):
        show(comms_text(*runs, choice=Choice(op=op, group=group, step=step), slowest=slowest, timeline=timeline,
                        matrix=matrix, as_json=as_json, strict=strict, sizes=given_sizes(sizes)))


def comms_text(*runs: Path, choice: Choice | None = None, slowest: int | None = None, timeline: bool = False,
               matrix: bool = False, as_json: bool = False, strict: bool = False,
               sizes: Mapping[str, int] | None = None) -> str:
    """Returns what `distprof comms` prints about the communication of a run.

    Args:
        *runs: A run directory, or several of one job; traces of other programs, or dumps of torch's flight recorder.
        choice: Collectives to include; None: all.
        slowest: Lists this many of the longest collectives instead of the summary.
        timeline: Draws every collective on a time axis instead of the summary.
        matrix: Shows the bytes exchanged by pairs of ranks instead of the summary.
        as_json: Returns everything as JSON.
        strict: Fails if data is missing.
        sizes: Axis of the device mesh -> size, instead of those recorded in the run.

    Raises:
        DataError: The run cannot be read.
        UsageError: There is no such op, group or step.
        IncompleteError: Data is missing and `strict` is set.
    """
    from distprof.merge.cost.choice import Choice
    from distprof.merge.text.communication.comms_tables import comms_data
    from distprof.merge.text.communication.hang import dumps_alone, dumps_text
    from distprof.merge.text.problems import fail_if_incomplete
    from distprof.merge.totals.description import problems_of
    from distprof.merge.totals.findings import findings_of

    if len(runs) == 1 and (dumps := dumps_alone(runs[0])) is not None:
        fail_if_incomplete(dumps.problems, strict=strict)
        return dumps_text(dumps, as_json=as_json)
    found = findings_of(*runs, choice=choice or Choice(), sizes=sizes or {}, of_rows=timeline or matrix)
    fail_if_incomplete(problems_of(found.run, found.clock), strict=strict)
    if as_json:
        return json.dumps(comms_data(found), indent=1)
    return _screen(found, runs, slowest=slowest, timeline=timeline, matrix=matrix)


def _screen(found: Findings, runs: Sequence[Path], *, slowest: int | None, timeline: bool, matrix: bool) -> str:
    """Returns the summary, or the parts that were requested instead of it, as text."""
    from distprof.merge.clock.choose import runs_as_told
    from distprof.merge.cost.matrix import bytes_between
    from distprof.merge.text.communication.comms import summarise
    from distprof.merge.text.communication.comms_tables import list_slowest, show_matrix
    from distprof.merge.text.communication.timeline import draw_timeline
    from distprof.merge.text.problems import show_problems
    from distprof.merge.totals.description import problems_of
    from distprof.merge.watch.job_watch import known_state
    from distprof.reporters.page import Page

    page, is_summary = Page(), slowest is None and not timeline and not matrix
    if is_summary:
        summarise(found, page, known_state(found.run))
    if slowest is not None:
        list_slowest(found.collectives, slowest, found.clock, page)
        page.line()
    if timeline:
        draw_timeline(found.rows, found.run, found.clock, page)
    if matrix:
        show_matrix(bytes_between(found.counted_rows), found.run.world_size, found.steps, page)
    show_problems(found.run.remarks, problems_of(found.run, found.clock), page)
    if is_summary:
        last = f" --step {found.steps[-1]}" if found.steps else ""
        page.line()
        page.line(f"Next: distprof comms --timeline{last} {runs_as_told(runs)}")
        page.line(f"      distprof comms --slowest 20 {runs_as_told(runs)}")
    return page.text()
