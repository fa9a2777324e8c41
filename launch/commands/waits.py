"""`distprof waits`: what blocks the ranks of a run."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.launch.options import ATTEMPT, RUNS, STRICT
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
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.commands.waits import WaitsView
    from distprof.merge.commands.waits import waits as waits_of
    from distprof.merge.run.rank_folders import of_attempt

    view = WaitsView(by=by or ("line", "op"), sort=sort, top=top, ranks=ranks, steps=steps, queues=queues,
                     form=form or "text")
    show(waits_of(*of_attempt(runs, attempt), view=view, strict=strict))
