"""Returns the summary and the modules of a run, from an earlier merge of it if that is up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.merge.run.merged import modules_of_merge, summary_of_merge
from distprof.merge.run.open_run import NO_SIZES, open_run
from distprof.merge.run.run_model import Run

if TYPE_CHECKING:
    import polars as pl


def run_summary(paths: Sequence[Path], peak: float | None = None, sizes: Mapping[str, int] = NO_SIZES) -> (
        dict[str, Any]):
    """Returns the content of `summary.json`; an earlier merge is not used if the user overrides what the run says.

    Args:
        paths: The run directories of one job, traces of other programs, or a merge.
        peak: Peak FLOP/s of each rank's device, instead of the published one.
        sizes: Axis of the device mesh -> size, in place of what the run says.

    Raises:
        DataError: The run cannot be read.
        UsageError: The product of the sizes is not the world size.
    """
    known = None if peak is not None or sizes else summary_of_merge(paths)
    return _summary(paths, peak, sizes)[0] if known is None else known


def summary_and_modules(paths: Sequence[Path], sizes: Mapping[str, int] = NO_SIZES) -> (
        tuple[dict[str, Any], pl.DataFrame | None]):
    """Returns the same, and `MERGED_MODULES` of the run; None for traces of other programs, which have none."""
    summary, modules = (None, None) if sizes else (summary_of_merge(paths), modules_of_merge(paths))
    if summary is not None and modules is not None:
        return summary, modules
    if summary is None:
        summary, run = _summary(paths, sizes=sizes)
    else:
        run = open_run(*paths, sizes=sizes, by_host=True)
    if modules is None and summary["kind"] != "traces":
        from distprof.merge.totals.modules import read_modules

        modules = read_modules(run).rows
    return summary, modules


def _summary(paths: Sequence[Path], peak: float | None = None, sizes: Mapping[str, int] = NO_SIZES) -> (
        tuple[dict[str, Any], Run]):
    # imported here because an earlier merge, if there is one, has all of it
    from distprof.merge.cost.measured_run import measured_run
    from distprof.merge.totals.many_ranks import opened
    from distprof.merge.totals.recorded_tables import read_tables
    from distprof.merge.totals.summary import reduce

    run, many = opened(paths, sizes)
    if many is not None:
        return many.summary(peak), run
    found = measured_run(run)
    tables = read_tables(found.run)
    return reduce(found.noting(tables.problems), tables, peak=peak)[0], run
