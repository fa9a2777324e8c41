"""Measures what each collective cost and which rank the others waited for: the columns of the merged table.

For a collective on ranks r with arrivals s_r and ends e_r: A = max s_r is the last arrival, A - min s_r the arrival
spread, wait_r = min(max(A - s_r, 0), e_r - s_r), transfer_r = e_r - s_r - wait_r. Without a common clock: the rank with
the shortest time in the collective waited for nobody, so transfer = min (e_r - s_r), and the rest is waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT, ROWS, WAITING_FOR_ALL
from distprof.merge.clock.model import Clock, on_common_clock
from distprof.merge.run.group_ranks import SIZE

MEASURED = ("arrival_ns", "arrival_spread_ns", "late_rank", "end_spread_ns", "wait_ns", "transfer_ns",
            "clock_free_wait_ns", "clock_free_transfer_ns", "unsure", "disagrees", "algbw", "busbw", "between_hosts")
"""Columns that measuring adds."""
_OF_ALL = ("last_ns", "comparable", "together", "all_held", "shortest_ns", "uncertainty_ns")
"""Further values per collective from which its rows are measured."""
_IS_PAIR = pl.col("op").is_in(POINT_TO_POINT)
_WAITS_FOR_ALL = pl.col("op").is_in(WAITING_FOR_ALL)
TIMES = ("enqueue_ns", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
"""Columns of times, which are converted to the common clock."""


def with_costs(rows: pl.DataFrame, clock: Clock, hosts: Mapping[int, Hashable]) -> pl.DataFrame:
    """Adds the columns `MEASURED`; the contract (`MERGED_COLLECTIVES`) describes them.

    Clocks of ranks that were not aligned are used unchanged, and everything that depends on them is `unsure`. If a
    collective shows that they are wrong, because a rank left before another came, these values are null.

    Args:
        rows: Columns of `COLLECTIVES` and of `match`, sorted by `collective` (counted from 0 without gaps) and rank;
            times on the common clock.
        clock: How much times of ranks may differ.
        hosts: Rank -> its machine; None or missing if not known.
    """
    timed = rows.with_columns(_arrival(rows).alias("arrival_ns"))
    held = pl.col("end_ns") - pl.col("arrival_ns")
    timed = timed.with_columns(pl.when(held >= 0).then(held).alias("held_ns"))
    each = _per_collective(timed).with_columns(_uncertainty(timed, clock), _between_hosts(timed, hosts))
    each = _without_contradicted(each).with_columns(_size(), *_clock_based())
    each = each.with_columns(_bandwidth())
    each = each.select(*_OF_ALL, *(name for name in MEASURED if name in each.columns))
    joined = pl.concat([timed, each[timed["collective"]]], how="horizontal")
    return _of_rows(joined).select(*rows.columns, *MEASURED)


def _arrival(rows: pl.DataFrame) -> pl.Series:
    """Returns starts if all ranks of a collective have one, else calls if all have one: like is compared with like."""
    if not rows["start_ns"].null_count():
        return rows["start_ns"]
    lacks = rows.group_by("collective", maintain_order=True).agg(
        pl.col("start_ns").is_null().any().alias("no_start"), pl.col("enqueue_ns").is_null().any().alias("no_enqueue"))
    every = pl.concat([rows.select("start_ns", "enqueue_ns"), lacks.drop("collective")[rows["collective"]]],
                      how="horizontal")
    either = pl.coalesce("start_ns", "enqueue_ns")
    return every.select(pl.when(pl.col("no_start") & ~pl.col("no_enqueue")).then("enqueue_ns").otherwise(either))[
        "enqueue_ns"]


def _per_collective(rows: pl.DataFrame) -> pl.DataFrame:
    arrival, end, size = pl.col("arrival_ns"), pl.col("end_ns"), pl.col("size_bytes")
    each = rows.group_by("collective", maintain_order=True).agg(
        pl.col("op", "num_ranks", "complete").first(),
        arrival.min().alias("first_ns"), arrival.max().alias("last_ns"), arrival.is_not_null().all().alias("all_came"),
        end.min().alias("first_end_ns"), end.max().alias("last_end_ns"),
        pl.col("held_ns").is_not_null().all().alias("all_held"), end.is_not_null().all().alias("all_ended"),
        end.filter(pl.col("op") == "recv").max().alias("received_ns"), pl.col("held_ns").min().alias("shortest_ns"),
        size.is_not_null().all().alias("all_sized"), size.sum().alias("sum_bytes"), size.mean().alias("mean_bytes"),
        size.max().alias("max_bytes"), pl.col("rank").sort_by("arrival_ns", "rank").last().alias("last_rank"))
    together = pl.col("complete") & ~_IS_PAIR & (pl.col("num_ranks") > 1)
    return each.with_columns(together.alias("together"), (together & pl.col("all_came")).alias("comparable"))


def _uncertainty(rows: pl.DataFrame, clock: Clock) -> pl.Series:
    """Returns how much two times of ranks of a collective may be wrong relative to each other; null if not known."""
    name = "uncertainty_ns"
    if clock.compares_exactly:
        return pl.repeat(0, rows["collective"].n_unique(), dtype=pl.Int64, eager=True).alias(name)
    each = rows.group_by("collective", maintain_order=True).agg("rank").select(
        "rank", pl.col("rank").hash().alias("members"))
    sets = each.unique("members", maintain_order=True)  # many collectives share few sets of ranks
    off_ns = pl.Series(name, [clock.pair_uncertainty_ns(ranks) for ranks in sets["rank"].to_list()], pl.Int64)
    return each.join(sets.select("members", off_ns), on="members", how="left", maintain_order="left")[name]


def _between_hosts(rows: pl.DataFrame, hosts: Mapping[int, Hashable]) -> pl.Series:
    """Returns whether ranks are on several hosts; null if that depends on unknown hosts or ranks."""
    names = {host: number for number, host in enumerate(dict.fromkeys(hosts.values())) if host is not None}
    known = pl.DataFrame({"rank": list(hosts), "host": [names.get(host) for host in hosts.values()]},
                         schema={"rank": pl.Int64, "host": pl.Int64})
    several, unknown = pl.col("host").min() != pl.col("host").max(), pl.col("host").is_null().any()
    is_alone = _IS_PAIR.first() & (pl.col("num_ranks").first() < 2)
    members = pl.col(SIZE).first()
    each = rows.select("collective", "rank", "op", "num_ranks", SIZE).join(known, on="rank", how="left",
                                                                                       maintain_order="left")
    lacks = is_alone | (~_IS_PAIR.first() & (members.is_null() | (pl.col("num_ranks").first() < members)))
    return each.group_by("collective", maintain_order=True).agg(
        pl.when(several).then(True).when(~unknown & ~lacks).then(False).alias("between_hosts"))["between_hosts"]


def _without_contradicted(each: pl.DataFrame) -> pl.DataFrame:
    """Discards comparisons of unaligned clocks if by these clocks a rank left a collective before another one came."""
    left_before = _WAITS_FOR_ALL & pl.col("comparable") & pl.col("all_ended") & (
        pl.col("last_ns") > pl.col("first_end_ns") + pl.col("uncertainty_ns").fill_null(0))
    each = each.with_columns(left_before.alias("contradicts"))
    unaligned = each["uncertainty_ns"].is_null()
    if not (unaligned & each["contradicts"]).any():
        return each
    return each.with_columns((pl.col("comparable") & ~unaligned).alias("comparable"),
                             (pl.col("all_ended") & ~unaligned).alias("all_ended"))


def _clock_based() -> list[pl.Expr]:
    spread = pl.when("comparable").then(pl.col("last_ns") - pl.col("first_ns"))
    off = pl.col("uncertainty_ns")
    return [spread.alias("arrival_spread_ns"), pl.when("comparable").then("last_rank").alias("late_rank"),
            pl.when(pl.col("together") & pl.col("all_ended")).then(pl.col("last_end_ns") - pl.col("first_end_ns"))
            .alias("end_spread_ns"),
            pl.when("comparable").then(off.is_null() | (spread <= off) | pl.col("contradicts")).alias("unsure")]


def _size() -> pl.Expr:
    """Returns the bytes as nccl-tests count them; null if there are none."""
    found = pl.col("max_bytes").cast(pl.Float64)
    for op in ROWS:
        if op.size != "max":
            found = pl.when(pl.col("op") == op.name).then(pl.col(f"{op.size}_bytes").cast(pl.Float64)).otherwise(found)
    return pl.when(pl.col("all_sized") & (found > 0)).then(found).alias("bytes")


def _bandwidth() -> list[pl.Expr]:
    """Returns bandwidths from the last arrival to the last end (pairs: the receipt); without clocks by durations."""
    by_clock = pl.col("last_end_ns") - pl.col("last_ns")
    known = pl.col("comparable") & pl.col("all_ended") & _WAITS_FOR_ALL
    pair = _IS_PAIR & pl.col("complete") & (pl.col("num_ranks") == 2) & pl.col("uncertainty_ns").is_not_null()
    time = (pl.when(known & pl.col("uncertainty_ns").is_not_null()).then(by_clock)
            .when(pl.col("together") & _WAITS_FOR_ALL & pl.col("all_held")).then("shortest_ns")
            .when(pair & pl.col("all_came")).then(pl.col("received_ns") - pl.col("last_ns")))
    algbw = pl.when(time > 0).then(pl.col("bytes") / time * 1e9)
    return [algbw.alias("algbw"), (algbw * _bus_factor()).alias("busbw")]


def _bus_factor() -> pl.Expr:
    share = 1 - 1 / pl.col("num_ranks")
    found: pl.Expr = pl.lit(None, pl.Float64)
    for op in ROWS:
        if op.bus_factor is not None:
            factor = {"ring twice": 2 * share, "ring": share, "once": pl.lit(1.0)}[op.bus_factor]
            found = pl.when(pl.col("op") == op.name).then(factor).otherwise(found)
    return found


def _of_rows(joined: pl.DataFrame) -> pl.DataFrame:
    held = pl.col("held_ns")
    waits = _WAITS_FOR_ALL & pl.col("comparable")
    wait = pl.when(waits).then(pl.min_horizontal(pl.col("last_ns") - pl.col("arrival_ns"), held))
    wait = pl.when(held.is_not_null()).then(wait)
    shortest = pl.when(_WAITS_FOR_ALL & pl.col("together") & pl.col("all_held")).then("shortest_ns")
    found = joined.with_columns(
        wait.alias("wait_ns"), (held - wait).alias("transfer_ns"), (held - shortest).alias("clock_free_wait_ns"),
        shortest.alias("clock_free_transfer_ns"))
    apart = (pl.col("wait_ns") - pl.col("clock_free_wait_ns")).abs()
    # ranks may leave at different times, which differ by about the transfer
    explained = pl.col("uncertainty_ns").fill_null(0) + pl.col("clock_free_transfer_ns")
    return found.with_columns((apart > explained).alias("disagrees"))


def measured_collectives(matched: pl.DataFrame, clock: Clock, hosts: Mapping[int, Hashable]) -> pl.DataFrame:
    """Measures every collective on every rank: the columns of `MERGED_COLLECTIVES`, sorted by `collective` and rank.

    Args:
        matched: Rows as returned by `match`, times on the clocks of the ranks.
        clock: The clock of the run.
        hosts: Rank -> its machine, equal for ranks of one machine; None if not known.

    Returns:
        The rows on the common clock, with collectives numbered by their first arrival.
    """
    return with_costs(_by_arrival(on_common_clock(clock, matched, TIMES)), clock, hosts)


def _by_arrival(rows: pl.DataFrame) -> pl.DataFrame:
    first = rows.group_by("collective", maintain_order=True).agg(
        pl.coalesce("start_ns", "enqueue_ns").min().alias("first_ns"))
    order = first.sort("first_ns", "collective", nulls_last=True)["collective"].to_numpy()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    number = place[rows["collective"].to_numpy()]
    order = np.argsort(number, kind="stable")
    return rows[order].with_columns(pl.Series("collective", number[order]).set_sorted())


def most_often_late(pieces: Iterable[pl.DataFrame]) -> int | None:
    """Returns the rank that came last to most collectives; None if none is known.

    Args:
        pieces: Pieces of `MERGED_COLLECTIVES`.
    """
    counts = Counter[int]()
    for rows in pieces:
        late = rows.filter(pl.col("late_rank") == pl.col("rank"))["rank"]
        counts.update(dict(late.value_counts().iter_rows()))
    return min(counts, key=lambda rank: (-counts[rank], rank), default=None)
