"""`distprof report`: all that is known of a run on one page."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.errors import UsageError
from distprof.launch.options import (
    ATTEMPT,
    PLACE,
    RUNS,
    SAME_HOST,
    given_sizes,
    given_workers,
    mesh_sizes,
    worker_options,
)
from distprof.terminal import show


@click.command()
@RUNS
@click.option("--out", default=None, type=PLACE, metavar="FILE",
              help="File to write.  [default: RUN/merged/report.html; RUN/report.html if RUN is not merged; "
                   "report.html here for foreign traces]")
@click.option("--json", "as_json", is_flag=True, help="Print the contents of the page as JSON.")
@click.option("--markdown", is_flag=True,
              help="Print the findings as Markdown, for a pull request or a chat.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--peak", default=None, type=float, metavar="FLOP/S",
              help="Peak rate of each rank's device, such as 1.2e12, for MFU and roofline.  [default: the published "
                   "rate]")
@click.option("--bandwidth", default=None, type=float, metavar="BYTES/S",
              help="Memory bandwidth of that device.  [default: the published one]")
@worker_options
@mesh_sizes
@SAME_HOST
@ATTEMPT
def report(runs: tuple[Path, ...], *, out: Path | None, as_json: bool, markdown: bool, force: bool,
           peak: float | None, bandwidth: float | None, attempt: int | None, workers: int | None,
           scheduler: str | None, **sizes: int | None) -> None:
    """Write an HTML page with all findings about RUN.

    The page is a single file that needs no network. RUN is a run directory or traces from torch.profiler. Several RUNs
    are run directories of one job whose hosts share no folder.
    """
    if as_json and markdown:
        raise UsageError("--json and --markdown cannot be combined", hint="call distprof report twice")
    if out is not None and str(out) == "-":
        raise UsageError("--out must be a file, not -",
                         hint="distprof report --markdown RUN prints the findings; --json prints the whole page")
    form = "json" if as_json else "markdown" if markdown else None
    if form is not None and (out is not None or force):
        raise UsageError(f"--{form} cannot be combined with {'--out' if out is not None else '--force'}",
                         hint=f"distprof report --{form} RUN > FILE")
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.commands.report import report as report_of
    from distprof.merge.report.sources import Given
    from distprof.merge.run.rank_folders import of_attempt
    from distprof.merge.run.timelines import reading_in

    given = Given(sizes=given_sizes(sizes), peak=peak, bandwidth=bandwidth)
    with reading_in(given_workers(workers, scheduler)):
        show(report_of(*of_attempt(runs, attempt), form=form or "html", out=out, force=force, given=given))
