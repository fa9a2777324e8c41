"""`distprof report`: everything known about a run on one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distprof.contract.paths import MERGED, REPORT_HTML
from distprof.errors import OutputError, UsageError
from distprof.files import told, write_whole
from distprof.launch.options import (
    ATTEMPT,
    PLACE,
    RUNS,
    SAME_HOST,
    TIME_UNIT,
    check_rates,
    given_runs,
    given_sizes,
    given_workers,
    mesh_sizes,
    worker_options,
)
from distprof.terminal import show

if TYPE_CHECKING:
    from distprof.merge.report.sources import Given

GENERATOR = b'<meta name="generator" content="distprof">'
HEAD_BYTES = 2000
"""`GENERATOR` is within this many bytes from the start of a page."""


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
@TIME_UNIT
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
    runs = given_runs(runs, attempt)
    from distprof.merge.report.sources import Given
    from distprof.merge.run.timelines import reading_in

    given = Given(sizes=given_sizes(sizes), peak=peak, bandwidth=bandwidth)
    with reading_in(given_workers(workers, scheduler)):
        check_rates(peak=peak, bandwidth=bandwidth)
        show(str(write_report(*runs, out=out, force=force, given=given)) if form is None else
             _printed(runs, form, given))


def _printed(runs: Sequence[Path], form: str, given: Given) -> str:
    """Returns the document as JSON, or the findings as Markdown."""
    from distprof.merge.report.document import document

    found = document(*runs, given=given)
    if form == "json":
        return json.dumps(found, separators=(",", ":"))
    from distprof.merge.text.findings import render

    return render(found)


def write_report(*runs: Path, out: Path | None = None, force: bool = False, given: Given | None = None) -> Path:
    """Writes the HTML page.

    Args:
        *runs: A run directory, or several of one job; traces of other programs; or a merge.
        out: File to write; None: `report.html` in the merge of the run, in the run itself, or here for foreign traces.
            In these default locations, an earlier page is replaced.
        force: Replaces any existing file.
        given: Values of the user that override those of the run.

    Returns:
        The path of the page.

    Raises:
        DataError: The run cannot be read.
        OutputError: The file exists, or cannot be written.
        UsageError: The product of the given sizes does not match the number of ranks.
    """
    from distprof.merge.report.document import document
    from distprof.merge.report.sources import MEASURED

    place = out if out is not None else _place_of(runs)
    if place.exists() and not force and not (out is None and _is_page(place)):
        raise OutputError(f"{place} exists already", hint="replace it with --force, or choose another "
                                                          "with --out FILE.html")
    from distprof.merge.report.page.render import page

    text = page(document(*runs, given=given or MEASURED))
    with told(place):
        place.absolute().parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return place


def _is_page(place: Path) -> bool:
    """Returns whether a file is a page written by distprof."""
    with told(place), place.open("rb") as file:
        return GENERATOR in file.read(HEAD_BYTES)


def _place_of(runs: Sequence[Path]) -> Path:
    """Returns the default path: in the merge of a run, which is replaced as a whole; in a run that is not merged; or in
    the working directory for foreign traces."""
    from distprof.merge.run.merged import is_merge
    from distprof.merge.run.traces.discovery import is_recorded

    first = runs[0]
    if is_merge(first):
        return first / REPORT_HTML
    if not is_recorded(first):
        return Path(REPORT_HTML)
    return first / MERGED / REPORT_HTML if is_merge(first / MERGED) else first / REPORT_HTML
