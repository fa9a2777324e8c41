"""Makes the report of a run: an HTML page, its document as JSON, or its findings as Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from distprof.contract.paths import MERGED, REPORT_HTML
from distprof.errors import OutputError, UsageError
from distprof.files import told, write_whole
from distprof.merge.report.document import document
from distprof.merge.report.sources import MEASURED, Given
from distprof.merge.run.merged import is_merge
from distprof.merge.run.traces.discovery import is_recorded

GENERATOR = b'<meta name="generator" content="distprof">'
HEAD_BYTES = 2000
"""It stands among these of a page."""


def report(path: Path, *more: Path, form: str = "html", out: Path | None = None, force: bool = False,
           given: Given = MEASURED) -> str:
    """Writes the page, or gives the document or the findings as text.

    Args:
        path: A run directory or traces of other programs; the merge of one.
        *more: Further run directories of the same job.
        form: html, json or markdown.
        out: Where the page goes; into the merge of the run, or the run itself, where it is not given. There an earlier
            page is replaced.
        force: Replace any earlier file.
        given: What the user knows better.

    Raises:
        DataError: The run cannot be read.
        OutputError: The file exists, or cannot be written.
        UsageError: The sizes given do not make up the world, or a rate is no positive number.
    """
    for option, rate in (("--peak", given.peak), ("--bandwidth", given.bandwidth)):
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"{option} must be positive, not {rate}")
    if form == "json":
        return json.dumps(document(path, *more, given=given), separators=(",", ":"))
    if form == "markdown":
        from distprof.merge.text.findings import render

        return render(document(path, *more, given=given))
    place = out if out is not None else place_of((path, *more))
    if place.exists() and not force and not (out is None and _is_page(place)):
        raise OutputError(f"{place} exists already", hint="replace it with --force, or choose another "
                                                                      "with --out FILE.html")
    from distprof.merge.report.page.render import page

    text = page(document(path, *more, given=given))
    with told(place):
        place.absolute().parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return str(place)


def _is_page(place: Path) -> bool:
    """True for a page that we wrote."""
    with told(place), place.open("rb") as file:
        return GENERATOR in file.read(HEAD_BYTES)


def place_of(paths: Sequence[Path]) -> Path:
    """Into the merge of a run, which is replaced as a whole; into a run without one; here for traces of others."""
    first = paths[0]
    if is_merge(first):
        return first / REPORT_HTML
    if not is_recorded(first):
        return Path(REPORT_HTML)
    return first / MERGED / REPORT_HTML if is_merge(first / MERGED) else first / REPORT_HTML
