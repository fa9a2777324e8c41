"""Communication as the ranks have it: a run comes in, one row per op and rank goes out, whoever recorded it."""

from __future__ import annotations

import polars as pl

from distprof.merge.comms.labelled import labelled_rows
from distprof.merge.run import Run


def rows_of(run: Run) -> pl.DataFrame:
    """One row per communication op of a rank, in the order in which the rank issued them.

    The columns are those of `COLLECTIVES` and `comms_id`, the id that the backend gives to a collective; times are of
    the rank's own clock. Of traces of other programs much may be null.
    """
    return labelled_rows(run)
