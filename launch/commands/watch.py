"""`distprof watch`: the steps of a job while it runs."""

from __future__ import annotations

import click

from distprof.launch.options import JSON, run_directories


@click.command()
@click.argument("run", metavar="RUN", shell_complete=run_directories)
@click.option("--once", is_flag=True, help="Print one screen as plain text.  [default: if stdout is not a terminal]")
@JSON
def watch(run: str, *, once: bool, as_json: bool) -> None:
    """Watch the ranks of RUN: who is late, since when, and why.

    Shows step times, who waits for others, memory, the last minute, and all findings. RUN is the run directory of a job
    that is running or over, its URL, or HOST:PORT of a launcher that was started with --metrics. Ctrl-C ends the
    display, not the job.
    """
    from distprof.launch.watching.live import watch as watched

    watched(run, once=once, as_json=as_json)
