"""Waits that no slice shows, or that were missed on some ranks: where most others waited, they did so too.

A thread may stand still for a collective inside an operator or a function of autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Flags, Integers

ENOUGH = 20
"""Rows of a kind of collective from which on it is judged."""
AFTER = 0.95
"""Share of the rows whose thread calls nothing before the collective has ended, or may have been noted to end later."""
BETWEEN = 0.5
"""Slope that lies between that of threads that wait, 1, and of those that go on, 0."""
DEVIATIONS = 4
"""Standard errors by which the slope has to lie above `BETWEEN`."""


def waits_at_once(rows: pl.DataFrame, known: Integers, begin_ns: Integers) -> Integers:
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


def calls_before(rank: Integers, enqueue: Integers, row: Integers, begin_ns: Integers) -> Any:
    """Calls of the rank between that of an op and the wait for it; rows are by rank and call."""
    if not len(row):
        return np.zeros(0, np.int64)
    base = rank * (int(np.ptp(enqueue)) + int(np.ptp(begin_ns)) + 2) - int(enqueue.min())
    return np.maximum(np.searchsorted(enqueue + base, begin_ns + base[row], "right") - 1 - row, 0)


MOST = 0.6
"""Share of the others that waited, from which all did."""
MEETING = ("collective", "op")
"""Ranks that meet."""
PLACE = ("place", "op", "num_ranks", "of")
"""Ranks that call as many ops, and the same one in the same place."""
USUAL = ("after", "until", "calls", "turn", "own")
"""What is known of waits, in the median: how long after their call they began, when they ended, behind how many further
calls, in which turn among the waits behind the last of those, and how long after that call, or the wait before, they
began."""


def missed_waits(rows: pl.DataFrame, row: Integers, begin_ns: Integers,
                 end_ns: Integers) -> tuple[Integers, Integers, Integers]:
    """Waits that nothing shows on the rank itself.

    The others are those of the same collective; where they are too few, those that call the same op in the same place
    of their program. A missed wait comes behind as many calls as theirs, and ended when theirs did, or else the op, or
    when the rank called the next op.

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
    if lacks.all() or not lacks.any():  # nothing tells, or nothing is missing
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
    """Rows of the collectives, and in the places, of those that lack a wait; of many rows, most are neither."""
    rank, collective = rows["rank"].to_numpy(), rows["collective"].to_numpy()
    place = np.arange(len(rows)) - np.searchsorted(rank, rank)
    alike = np.flatnonzero(_among(collective, lacks) | _among(place, lacks))
    return rows.select("rank", "collective", "op", "num_ranks", "enqueue_ns", "end_ns", of=pl.len().over("rank"),
                       place=pl.Series(place), row=pl.int_range(pl.len(), dtype=pl.Int64))[alike]


def _among(keys: Integers, chosen: Flags) -> Flags:
    """True where a key, not below 0, is also that of a chosen row."""
    there = np.zeros(int(keys.max(initial=-1)) + 1, bool)
    there[keys[chosen]] = True
    return there[keys]


def _with_turns(enqueue: Integers, waits: pl.DataFrame, *, needed: bool) -> pl.DataFrame:
    """Adds `turn` and `own`; null where they are not needed."""
    if not needed:
        return waits.with_columns(turn=pl.lit(None, pl.Int64), own=pl.lit(None, pl.Int64))
    behind, began = pl.col("row") + pl.col("calls"), pl.col("after") + pl.Series(enqueue).gather(waits["row"])
    ordered = waits.with_columns(behind=behind, began=began).sort("behind", "began", "row")
    called = pl.Series(enqueue).gather(ordered["behind"])
    before = pl.col("until").shift().over("behind").fill_null(called)
    return ordered.with_columns(turn=pl.int_range(pl.len()).over("behind"),
                                own=(pl.col("began") - before).clip(0)).drop("behind", "began")


def _usual(table: pl.DataFrame) -> pl.DataFrame:
    """Rows without a wait where most others have one, with what is usual for those."""
    lacks = table.filter(pl.col("after").is_null()).drop(USUAL)
    met = _as_others(table, lacks, MEETING)
    alike = _as_others(table, lacks.join(met, on="row", how="anti"), PLACE)
    return pl.concat((met, alike.with_columns(until="end_ns")))


def _as_others(table: pl.DataFrame, lacks: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Rows that lack a wait where most others with the same key have one, with what is usual for those."""
    others = table.join(lacks, on=key, how="semi").group_by(key).agg(
        pl.len(), pl.col(USUAL).median().cast(pl.Int64), share=pl.col("after").count() / (pl.len() - 1))
    enough = others.filter(pl.col("len") > 1, pl.col("share") >= MOST)
    return lacks.join(enough, on=key).select("row", "rank", "enqueue_ns", "end_ns", *USUAL)


def _behind(rank: Integers, enqueue: Integers, found: pl.DataFrame) -> pl.DataFrame:
    """Adds the row of the last call in front of each wait, when that was called, and the next."""
    row, calls = (found[name].to_numpy() for name in ("row", "calls"))
    last = np.searchsorted(rank, rank[row], "right") - 1
    behind = np.minimum(row + calls, last)
    following = np.where(behind < last, enqueue[np.minimum(behind + 1, last)], np.iinfo(np.int64).max)
    return found.with_columns(behind=pl.Series(behind), called=pl.Series(enqueue[behind]),
                              following=pl.Series(following))


def _after_calls(found: pl.DataFrame) -> pl.DataFrame:
    """Waits of ranks of which others are known: they begin as long after their calls as is usual."""
    began = (pl.col("enqueue_ns") + pl.col("after")).clip("called", "following")
    until = pl.min_horizontal("end_ns", "until").clip("began", "following")
    return found.with_columns(began=began).select("row", "began", until=until)


def _in_turn(found: pl.DataFrame) -> pl.DataFrame:
    """Waits of ranks of which none is known: each begins as long after the one before as is usual."""
    until, own = pl.min_horizontal("end_ns", "until"), pl.col("own").cum_sum()
    over = pl.max_horizontal(own + pl.col("called"), own + (until - own).cum_max()).over("behind")
    began = pl.max_horizontal(pl.col("over").shift().over("behind"), "called") + pl.col("own")
    return found.sort("behind", "turn", "after", "row").with_columns(over=over).with_columns(
        began=pl.min_horizontal(began, "following")).select(
        "row", "began", until=pl.min_horizontal(pl.max_horizontal("over", "began"), "following"))
