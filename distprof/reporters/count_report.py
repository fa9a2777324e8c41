"""A count as a table: a count and a view come in, a report goes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.reporters.count_rows import count_rows
from distprof.reporters.count_totals import count_totals
from distprof.reporters.report import Report
from distprof.reporters.view import View

if TYPE_CHECKING:
    from distprof.counting.counts import Counts


def count_report(counts: Counts, view: View) -> Report:
    """The tree of modules above the totals of the call."""
    return Report(rows=count_rows(counts), view=view, footer=count_totals(counts))
