"""Waits that no slice shows: a thread stands still for a collective inside an operator or a function of autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

ENOUGH = 20
"""Rows of a kind of collective from which on it is judged."""
AFTER = 0.95
"""Share of the rows whose thread calls nothing before the collective has ended, or may have been noted to end later."""
BETWEEN = 0.5
"""Slope that lies between that of threads that wait, 1, and of those that go on, 0."""
DEVIATIONS = 4
"""Standard errors by which the slope has to lie above `BETWEEN`."""


def waits_at_once(rows: pl.DataFrame, known: Any, begin_ns: Any) -> Any:
    """Rows of collectives for which threads waited as soon as they had called them, though nothing shows it.

    A thread that waits calls its next op the later, the earlier it came to the collective; one that goes on does not.
    So the time to the next call is fitted as a line of the time to the end, of all rows of one op in one group, each
    less the mean of its collective. A known wait before the next call would bring ranks together whatever they did.

    Args:
        rows: Collectives by rank and call, with `rank`, `collective`, `op`, `group`, `enqueue_ns`, `end_ns` and
            `timed_by`.
        known: Indices of rows that threads are known to have waited for.
        begin_ns: When these waits began.

    Returns:
        Indices of rows.
    """
    rank, called, end = (rows[name].to_numpy() for name in ("rank", "enqueue_ns", "end_ns"))
    chosen = np.append(rank[1:] == rank[:-1], False)[:len(rows)]  # those with a next call
    chosen[known] = False
    chosen[known + calls_before(rank, called, known, begin_ns)] = False
    following = np.append(called[1:], 0)[:len(rows)]
    table = rows.select("op", "group", "collective", row=pl.int_range(pl.len()),
                        to_end=pl.Series((end - called).astype(float)),
                        to_next=pl.Series((following - called).astype(float)),
                        is_after=pl.Series(following >= end) | (pl.col("timed_by") == "future").fill_null(value=False),
                        ).filter(pl.Series(chosen))
    centred = table.with_columns(pl.col("to_end", "to_next") - pl.col("to_end", "to_next").mean().over("collective"))
    kinds = centred.group_by("op", "group").agg(
        pl.len(), share=pl.col("is_after").mean(), xx=(pl.col("to_end") ** 2).sum(), yy=(pl.col("to_next") ** 2).sum(),
        xy=(pl.col("to_end") * pl.col("to_next")).sum())
    slope = pl.col("xy") / pl.col("xx")
    error = ((pl.col("yy") - slope * pl.col("xy")).clip(0) / pl.col("len") / pl.col("xx")).sqrt()
    waited = kinds.filter(pl.col("len") >= ENOUGH, pl.col("share") >= AFTER, pl.col("xx") > 0,
                          slope - DEVIATIONS * error > BETWEEN)
    return table.join(waited, on=["op", "group"], how="semi").filter("is_after")["row"].sort().to_numpy()


def calls_before(rank: Any, enqueue: Any, row: Any, begin_ns: Any) -> Any:
    """Calls of the rank between that of an op and the wait for it; rows are by rank and call."""
    if not len(row):
        return np.zeros(0, np.int64)
    base = rank * (int(np.ptp(enqueue)) + int(np.ptp(begin_ns)) + 2) - int(enqueue.min())
    return np.maximum(np.searchsorted(enqueue + base, begin_ns + base[row], "right") - 1 - row, 0)
