"""Communication as the ranks have it: a run comes in, one row per op and rank goes out, whoever recorded it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from distprof.contract.tables import COLLECTIVES
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the ranks of a run tell."""

    rows: pl.DataFrame
    ranks: list[int]
    """Those that tell what they issued, be it nothing; of the others nothing is known."""


def rows_of(run: Run) -> pl.DataFrame:
    """One row per communication op of a rank, in the order in which the rank issued them.

    The columns are those of `COLLECTIVES` and `comms_id`, the id that the backend gives to a collective; times are of
    the rank's own clock. Of traces of other programs much may be null, and `lane` is there too: it tells communicators
    apart that have no name.
    """
    return recorded(run).rows


def recorded(run: Run) -> Recorded:
    """The rows, and whose they are."""
    if run.kind == "traces":
        from distprof.merge.match.foreign import foreign_rows as rows_by_rank
    else:
        from distprof.merge.match.labelled import labelled_rows as rows_by_rank
    found = rows_by_rank(run)
    nothing = empty(COLLECTIVES).with_columns(pl.lit(None, pl.String).alias("comms_id"))
    return Recorded(rows=pl.concat(list(found.values()) or [nothing]), ranks=sorted(found))
