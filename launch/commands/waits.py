"""`distprof waits`: what blocks the ranks of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from distprof.launch.options import ATTEMPT, RUNS, STRICT, TIME_UNIT, as_csv, given_runs
from distprof.terminal import show


@click.command()
@RUNS
@click.option("--by", "by", multiple=True, metavar="KEY",
              help="Group waits by line, op, module, phase, rank, step, thread or what they wait for (for). Can be "
                   "repeated.  [default: line and op]")
@click.option("--sort", default="blocked_ns", metavar="COLUMN",
              help="Sort by blocked_ns, calls, mean_ns or longest_ns, largest first.  [default: blocked_ns]")
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Rows shown.  [default: 20; all with --json and --csv]")
@click.option("--rank", "ranks", multiple=True, type=int, metavar="N", help="Only this rank.")
@click.option("--step", "steps", multiple=True, type=int, metavar="N", help="Only this step.")
@click.option("--queues", is_flag=True, help="Also show device queues: commands sent but not yet started.  [default: "
                                             "shown if waits come from timelines]")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@TIME_UNIT
@ATTEMPT
@STRICT
def waits(runs: tuple[Path, ...], *, by: tuple[str, ...], sort: str, top: int | None, ranks: tuple[int, ...],
          steps: tuple[int, ...], queues: bool, form: str | None, attempt: int | None, strict: bool) -> None:
    """Show what blocks the ranks, line by line.

    Lines wait for a device, other ranks, data, threads, processes or torch.compile. RUN is a run directory or traces
    from torch.profiler. Lines of the script are known if the run was recorded with --steps sync=2; otherwise the waits
    visible in timelines are shown. Every recording shows what torch.compile did: what it compiled, what it recompiled
    and why, and the lines at which graphs break.
    """
    show(_blocked(given_runs(runs, attempt), by=by or ("line", "op"), sort=sort, top=top, ranks=ranks, steps=steps,
                  form=form or "text", queues=queues, strict=strict))


def _blocked(runs: Sequence[Path], *, by: Sequence[str], sort: str, top: int | None, ranks: Sequence[int],
             steps: Sequence[int], form: str, queues: bool, strict: bool) -> str:
    """Returns the waits of a run as text, JSON or CSV.

    Raises:
        DataError: The run cannot be read, or has no data about waits.
        UsageError: There is no such column, rank or step.
        IncompleteError: Data is missing and `strict` is set.
    """
    from distprof.merge.run.open_run import open_run
    from distprof.merge.text.problems import fail_if_incomplete
    from distprof.merge.text.waits import WaitsShown, render, waits_data
    from distprof.merge.waits.run_waits import grouped, run_waits
    from distprof.merge.waits.script_lines import script_lines
    from distprof.reporters.page import Page

    run = open_run(*runs)
    found = run_waits(run, queues=queues)
    problems = [*run.problems, *found.problems]
    fail_if_incomplete(problems, strict=strict)
    chosen = found.chosen(ranks, steps)
    table = grouped(chosen.rows, by, sort=sort, total_ns=int(chosen.steps["duration_ns"].sum()))
    first = table.head(top) if top else table
    if form == "csv":
        return as_csv(first)
    lines = script_lines(run)
    if ranks or steps:  # sampled lines cover all ranks and steps; a few of these have too few samples
        lines = lines.clear()
    if form == "json":
        return json.dumps(waits_data(run.world_size, chosen, first, lines, top), indent=1)
    shown = WaitsShown(run=run, found=chosen, table=table, lines=lines, by=tuple(dict.fromkeys(by)), top=top,
                       queues=queues, paths=runs, problems=problems)
    return render(shown, Page())
