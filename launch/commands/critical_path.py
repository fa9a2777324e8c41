"""`distprof critical-path`: the longest chain of each step over all ranks."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.launch.options import ATTEMPT, JSON, RUNS, SAME_HOST, STRICT, given_sizes, mesh_sizes
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
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.commands.critical_path import CriticalView, critical_paths
    from distprof.merge.run.rank_folders import of_attempt

    view = CriticalView(steps=steps, top=top, as_json=as_json)
    show(critical_paths(*of_attempt(runs, attempt), view=view, strict=strict, sizes=given_sizes(sizes)))
