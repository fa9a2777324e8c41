"""`distprof findings`: what is wrong with a run, the worst first."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.launch.options import ATTEMPT, JSON, RUNS, SAME_HOST, given_sizes, mesh_sizes
from distprof.terminal import show


@click.command()
@RUNS
@JSON
@mesh_sizes
@SAME_HOST
@ATTEMPT
def findings(runs: tuple[Path, ...], *, as_json: bool, attempt: int | None, **sizes: int | None) -> None:
    """List what is wrong with RUN, worst first.

    These are the findings of `distprof report`: at most 10, each with its evidence and a command that shows more.
    RUN is a run directory, or traces written by torch.profiler. The output of --json is short enough for a script or a
    coding agent to read all of it.
    """
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.commands.findings import findings as findings_of
    from distprof.merge.report.sources import Given
    from distprof.merge.run.rank_folders import of_attempt

    show(findings_of(*of_attempt(runs, attempt), as_json=as_json, given=Given(sizes=given_sizes(sizes))))
