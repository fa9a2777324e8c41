"""`distprof report`: all that is known of a run on one page."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.errors import UsageError
from distprof.launch.options import (
    ATTEMPT,
    EXACT,
    PLACE,
    RUNS,
    given_sizes,
    given_workers,
    mesh_sizes,
    worker_options,
)
from distprof.terminal import show


@click.command()
@RUNS
@click.option("--out", default=None, type=PLACE, metavar="FILE",
              help="Where the page is written.  [default: report.html in RUN/merged, in RUN where it was not merged, "
                   "here for traces of other programs]")
@click.option("--json", "as_json", is_flag=True, help="Print the document of the page as JSON.")
@click.option("--markdown", is_flag=True,
              help="Print the findings as Markdown, for a pull request or a chat.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--peak", default=None, type=float, metavar="FLOP/S",
              help="Peak rate of each rank's device, such as 1.2e12, for MFU and roofline.  [default: the published "
                   "rate]")
@click.option("--bandwidth", default=None, type=float, metavar="BYTES/S",
              help="Bandwidth of its memory.  [default: the published one]")
@worker_options
@mesh_sizes
@ATTEMPT
@EXACT
def report(runs: tuple[Path, ...], *, out: Path | None, as_json: bool, markdown: bool, force: bool,
           peak: float | None, bandwidth: float | None, attempt: int | None, exact: bool, workers: int | None,
           scheduler: str | None, **sizes: int | None) -> None:
    """Write a page with all findings about RUN, for any browser.

    It is one file that needs no network. RUN is a run directory, or traces that torch.profiler wrote. Several RUNs are
    run directories of one job, from hosts without a common folder.
    """
    if as_json and markdown:
        raise UsageError("expected --json or --markdown, found both", hint="call distprof report twice")
    if out is not None and str(out) == "-":
        raise UsageError("expected a file for --out, found -",
                         hint="distprof report --markdown RUN prints the findings, --json all of the page")
    form = "json" if as_json else "markdown" if markdown else None
    if form is not None and (out is not None or force):
        raise UsageError(f"expected --{form} alone, found {'--out' if out is not None else '--force'}",
                         hint=f"distprof report --{form} RUN > FILE")
    from distprof.launch.merge_memory import reuse_memory

    reuse_memory()
    from distprof.merge.commands.report import report as report_of
    from distprof.merge.report.sources import Given
    from distprof.merge.run.attempts import of_attempt
    from distprof.merge.run.each_rank import reading_in

    given = Given(sizes=given_sizes(sizes), peak=peak, bandwidth=bandwidth, exact=exact)
    with reading_in(given_workers(workers, scheduler)):
        show(report_of(*of_attempt(runs, attempt), form=form or "html", out=out, force=force, given=given))
