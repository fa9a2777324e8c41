"""`distprof critical-path`: the longest chain of each step over all ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from distprof.launch.options import ATTEMPT, JSON, RUNS, SAME_HOST, STRICT, given_runs, given_sizes, mesh_sizes
from distprof.terminal import show


@click.command("critical-path")
@RUNS
@click.option("--step", "steps", multiple=True, type=int, metavar="N",
              help="Show only this step; repeat it for the mean of several. With --json, its chain is listed link by "
                   "link.  [default: all steps with a timeline]")
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Rows of each table.  [default: 15; all with --json]")
@mesh_sizes
@SAME_HOST
@ATTEMPT
@JSON
@STRICT
def critical_path(runs: tuple[Path, ...], *, steps: tuple[int, ...], top: int | None, as_json: bool, strict: bool,
                  attempt: int | None, **sizes: int | None) -> None:
    """Show the critical path of a step across all ranks.

    The critical path is the chain of work, collectives and queues that leads without a gap from the start of a step to
    its end. A step ends earlier only if something on this path gets shorter. The slack of a module is how much longer
    it could take without delaying any step. RUN is a run directory or traces from torch.profiler.
    """
    show(critical_path_text(*given_runs(runs, attempt), steps=steps, top=top, as_json=as_json, strict=strict,
                            sizes=given_sizes(sizes)))


def critical_path_text(*runs: Path, steps: Sequence[int] = (), top: int | None = None, as_json: bool = False,
                       strict: bool = False, sizes: Mapping[str, int] | None = None) -> str:
    """The longest chains of the steps of a run.

    Args:
        *runs: A run directory, or several of one job; or traces of other programs.
        steps: Those that are shown; those with a timeline without.
        top: Rows of a table; all without, 15 in text.
        as_json: The answer as JSON; for chosen steps with every link.
        strict: Fail where something is missing.
        sizes: Axis of the device mesh -> size, in place of what the run says.

    Raises:
        DataError: The run cannot be read, or its ranks cannot be put into one graph.
        UsageError: There is no such step.
        IncompleteError: Something is missing and `strict` is set.
    """
    from distprof.contract.problems import RecordedLightly
    from distprof.merge.critical.critical_path import critical_path
    from distprof.merge.critical.replayable import chosen_steps, open_replayable
    from distprof.merge.text.critical import CriticalShown, critical_data, render
    from distprof.merge.text.problems import fail_if_incomplete
    from distprof.merge.totals.description import problems_of
    from distprof.merge.totals.step_time import step_time
    from distprof.reporters.page import Page

    found = open_replayable(*runs, sizes=sizes or {})
    problems = problems_of(found.run, found.clock)
    fail_if_incomplete(problems, strict=strict)
    chain = critical_path(found.program, found.job, chosen_steps(found, steps))
    if as_json:
        return json.dumps(critical_data(found, chain, top=top, with_chain=bool(steps)), indent=1)
    lightly = [one for one in found.run.remarks if isinstance(one, RecordedLightly)]
    shown = CriticalShown(run=found.run, clock=found.clock, path=chain, rows=found.program.rows, top=top,
                          guessed=found.guessed, on_device=found.on_device,
                          remarks=(*lightly, *(found.program.remarks if not steps else ())),
                          problems=problems, paths=runs, step_time=step_time(found.recorded))
    return render(shown, Page())
