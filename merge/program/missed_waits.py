"""Waits that no slice shows, or that were missed on some ranks: if most other ranks waited, these did, too.

A thread may be blocked by a collective inside an operator or a function of autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Flags, Integers

ENOUGH = 20
"""Number of rows needed to judge a kind of collective."""
AFTER = 0.95
"""A kind may have hidden waits only if at least this fraction of its threads call nothing before the collective has
ended (or its end may have been recorded late)."""
BETWEEN = 0.5
"""Slope between that of threads that wait, 1, and of threads that go on, 0."""
DEVIATIONS = 4
"""The slope has to exceed `BETWEEN` by this many standard errors."""


def waits_at_once(rows: pl.DataFrame, known: Integers, begin_ns: Integers) -> Integers:
    """Finds collectives for which threads waited as soon as they had called them, although nothing shows it directly.

    If a thread waits, the time from its call to its next call grows with the time from its call to the end of the
    collective; if it goes on, it does not. So the time to the next call is regressed on the time to the end, over all
    rows of one op in one group, each less the mean of its collective. Rows with a known wait before the next call are
    left out, because it would synchronize ranks anyway.

    Args:
        rows: Collectives by rank and call, with `rank`, `collective`, `op`, `group`, `enqueue_ns`, `end_ns` and
            `timed_by`.
        known: Indices of rows with known waits.
        begin_ns: When these waits began.

    Returns:
        Indices of rows.
    """
    rank, called, end = (rows[name].to_numpy() for name in ("rank", "enqueue_ns", "end_ns"))
    chosen = np.append(rank[1:] == rank[:-1], False)[:len(rows)]  # rows with a next call
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


def calls_before(rank: Integers, enqueue: Integers, row: Integers, begin_ns: Integers) -> Any:
    """Returns the number of calls of the rank between the call of an op and the wait for it; rows are by rank and
    call."""
    if not len(row):
        return np.zeros(0, np.int64)
    base = rank * (int(np.ptp(enqueue)) + int(np.ptp(begin_ns)) + 2) - int(enqueue.min())
    return np.maximum(np.searchsorted(enqueue + base, begin_ns + base[row], "right") - 1 - row, 0)


MOST = 0.6
"""A rank is assumed to have waited if at least this fraction of the other ranks did."""
MEETING = ("collective", "op")
"""Columns that identify ranks that meet."""
PLACE = ("place", "op", "num_ranks", "of")
"""Columns that identify equal calls: the same op at the same place, on ranks that call equally many ops."""
USUAL = ("after", "until", "calls", "turn", "own")
"""Columns of waits of which medians are used: how long after its call a wait began, when it ended, after how many
further calls, in which turn among the waits after the last of these calls, and how long after that call, or after the
wait before, it began."""


def missed_waits(rows: pl.DataFrame, row: Integers, begin_ns: Integers,
                 end_ns: Integers) -> tuple[Integers, Integers, Integers]:
    """Infers waits that nothing shows on the rank itself.

    Other ranks in the same collective are used; if too few of them waited, ranks that call the same op at the same
    place of their program. A missed wait comes after as many calls as theirs, and ends when theirs did, or else when
    the op ended, or when the rank called its next op.

    Args:
        rows: Collectives by rank and call, with `rank`, `collective`, `op`, `num_ranks`, `enqueue_ns` and `end_ns`.
        row: Indices of rows with a known wait.
        begin_ns: When those waits began.
        end_ns: When they ended.

    Returns:
        Indices of rows, and when their waits began and ended.
    """
    lacks = np.ones(len(rows), bool)
    lacks[row] = False
    if lacks.all() or not lacks.any():  # nothing is known, or nothing is missing
        return (np.empty(0, np.int64),) * 3
    rank, enqueue = rows["rank"].to_numpy(), rows["enqueue_ns"].to_numpy()
    blank = np.setdiff1d(rank[lacks], rank[row])
    waits = pl.DataFrame({"row": row, "after": begin_ns - enqueue[row], "until": end_ns,
                          "calls": calls_before(rank, enqueue, row, begin_ns)})
    waits = _with_turns(enqueue, waits, needed=bool(len(blank)))
    table = _like(rows, lacks).join(waits.unique("row", keep="first"), on="row", how="left")
    found = _behind(rank, enqueue, _usual(table))
    is_blank = pl.col("rank").is_in(blank.tolist())
    placed = pl.concat((_in_turn(found.filter(is_blank)), _after_calls(found.filter(~is_blank)))).sort("row")
    lacking, began, until = (placed[name].to_numpy() for name in ("row", "began", "until"))
    return lacking, began, until


def _like(rows: pl.DataFrame, lacks: Flags) -> pl.DataFrame:
    """Returns the rows that share a collective or a place with rows that lack a wait; usually these are few."""
    rank, collective = rows["rank"].to_numpy(), rows["collective"].to_numpy()
    place = np.arange(len(rows)) - np.searchsorted(rank, rank)
    alike = np.flatnonzero(_among(collective, lacks) | _among(place, lacks))
    return rows.select("rank", "collective", "op", "num_ranks", "enqueue_ns", "end_ns", of=pl.len().over("rank"),
                       place=pl.Series(place), row=pl.int_range(pl.len(), dtype=pl.Int64))[alike]


def _among(keys: Integers, chosen: Flags) -> Flags:
    """Returns True for keys (nonnegative) that some chosen row has, too."""
    there = np.zeros(int(keys.max(initial=-1)) + 1, bool)
    there[keys[chosen]] = True
    return there[keys]


def _with_turns(enqueue: Integers, waits: pl.DataFrame, *, needed: bool) -> pl.DataFrame:
    """Adds `turn` and `own`; null if they are not needed."""
    if not needed:
        return waits.with_columns(turn=pl.lit(None, pl.Int64), own=pl.lit(None, pl.Int64))
    behind, began = pl.col("row") + pl.col("calls"), pl.col("after") + pl.Series(enqueue).gather(waits["row"])
    ordered = waits.with_columns(behind=behind, began=began).sort("behind", "began", "row")
    called = pl.Series(enqueue).gather(ordered["behind"])
    before = pl.col("until").shift().over("behind").fill_null(called)
    return ordered.with_columns(turn=pl.int_range(pl.len()).over("behind"),
                                own=(pl.col("began") - before).clip(0)).drop("behind", "began")


def _usual(table: pl.DataFrame) -> pl.DataFrame:
    """Returns rows that lack a wait although most others have one, with the medians of the others."""
    lacks = table.filter(pl.col("after").is_null()).drop(USUAL)
    met = _as_others(table, lacks, MEETING)
    alike = _as_others(table, lacks.join(met, on="row", how="anti"), PLACE)
    return pl.concat((met, alike.with_columns(until="end_ns")))


def _as_others(table: pl.DataFrame, lacks: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Returns rows that lack a wait although most others with the same key have one, with the medians of the others."""
    others = table.join(lacks, on=key, how="semi").group_by(key).agg(
        pl.len(), pl.col(USUAL).median().cast(pl.Int64), share=pl.col("after").count() / (pl.len() - 1))
    enough = others.filter(pl.col("len") > 1, pl.col("share") >= MOST)
    return lacks.join(enough, on=key).select("row", "rank", "enqueue_ns", "end_ns", *USUAL)


def _behind(rank: Integers, enqueue: Integers, found: pl.DataFrame) -> pl.DataFrame:
    """Adds the row of the last call before each wait, the time of that call, and of the next one."""
    row, calls = (found[name].to_numpy() for name in ("row", "calls"))
    last = np.searchsorted(rank, rank[row], "right") - 1
    behind = np.minimum(row + calls, last)
    following = np.where(behind < last, enqueue[np.minimum(behind + 1, last)], np.iinfo(np.int64).max)
    return found.with_columns(behind=pl.Series(behind), called=pl.Series(enqueue[behind]),
                              following=pl.Series(following))


def _after_calls(found: pl.DataFrame) -> pl.DataFrame:
    """Places waits on ranks with other known waits: they begin the usual time after their calls."""
    began = (pl.col("enqueue_ns") + pl.col("after")).clip("called", "following")
    until = pl.min_horizontal("end_ns", "until").clip("began", "following")
    return found.with_columns(began=began).select("row", "began", until=until)


def _in_turn(found: pl.DataFrame) -> pl.DataFrame:
    """Places waits on ranks without known waits: each begins the usual time after the one before."""
    until, own = pl.min_horizontal("end_ns", "until"), pl.col("own").cum_sum()
    over = pl.max_horizontal(own + pl.col("called"), own + (until - own).cum_max()).over("behind")
    began = pl.max_horizontal(pl.col("over").shift().over("behind"), "called") + pl.col("own")
    return found.sort("behind", "turn", "after", "row").with_columns(over=over).with_columns(
        began=pl.min_horizontal(began, "following")).select(
        "row", "began", until=pl.min_horizontal(pl.max_horizontal("over", "began"), "following"))
