"""Sums over collectives: by op and group, by size and hosts, and how many were matched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from distprof.contract.collective_ops import ranks_of
from distprof.merge.cost.choice import group_key, group_label
from distprof.merge.run.group_ranks import told_of, with_lists

NEEDED = ("op", "group_key", "group", "group_description", "group_ranks", "num_ranks", "size_bytes",
          "arrival_spread_ns", "wait_ns", "transfer_ns", "algbw", "busbw", "between_hosts", "unsure")
"""Columns of `per_collective` that `kinds` uses."""
EACH_GROUP = 12
"""If there would be more lines than this, groups of one description and size share a line."""
_OF_ALL = (
    "step", "group", "group_description", "dtype", "complete", "mismatch", "matched_by", "num_ranks",
    "arrival_spread_ns", "late_rank", "end_spread_ns", "unsure", "algbw", "busbw", "between_hosts",
)
"""Columns that are equal, or nearly, in all rows of a collective."""
BY_SIZE = ("op", "group_description", "num_ranks", "between_hosts", "size_bucket")
"""Columns by which collectives are combined. Groups of one description and size are equal: the tp groups of all
hosts."""
BY_GROUP = ("group", "group_description", "group_ranks", "matched_by")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveKind:
    """All collectives of one op in one group, or in groups that are alike."""

    op: str
    group: str
    """Label of the group, or `64 x mesh_tp` for several groups that are alike."""
    num_groups: int
    ranks: list[int] | None
    """Ranks of the group; None for several groups, or if not known."""
    num_ranks: int | None
    """Number of ranks in one group; None if not known."""
    num_calls: int
    calls_per_step: float | None
    """Calls per step in one group; None if no step is known."""
    min_bytes: int | None
    """Smallest input of a rank, bytes; None if not known. `max_bytes` is the largest one."""
    max_bytes: int | None
    spread_median_ns: float | None
    spread_max_ns: int | None
    wait_ns: float | None
    """Wait per step (per call if no step is known), mean over ranks. Likewise `transfer_ns`."""
    transfer_ns: float | None
    algbw: float | None
    """Bytes per second, median over calls."""
    busbw: float | None
    between_hosts: bool | None
    num_unsure: int
    """Number of calls for which the clocks are too uncertain to show which rank came last."""


def kinds(collectives: pl.DataFrame, num_steps: int) -> list[CollectiveKind]:
    """Sums collectives up; largest waits first.

    Args:
        collectives: `NEEDED`, as returned by `per_collective`.
        num_steps: Number of steps that contain them; 0 if not known.
    """
    if collectives.is_empty():
        return []
    frame = collectives.with_columns(told_of(collectives["group_ranks"], len, pl.Int64).alias("members"))
    keys = ["op", "group_key"]
    if frame["group_key"].n_unique() > EACH_GROUP or len(frame.select(keys).unique()) > EACH_GROUP:
        keys = ["op", "group_description", "members"]
    each = frame.group_by(keys, maintain_order=True).agg(
        pl.col("group_key").n_unique().alias("num_groups"),
        pl.len().cast(pl.Int64).alias("num_calls"),
        pl.col("group").first().alias("name"), pl.col("group_description").first().alias("description"),
        pl.col("group_ranks").first().alias("ranks"), pl.col("members").first().alias("num_members"),
        pl.col("op").first().alias("kind"), pl.col("num_ranks").max(),
        pl.col("size_bytes").min().alias("min_bytes"), pl.col("size_bytes").max().alias("max_bytes"),
        pl.col("arrival_spread_ns").median().alias("spread_median_ns"),
        pl.col("arrival_spread_ns").max().alias("spread_max_ns"),
        *(pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)
          for name in ("wait_ns", "transfer_ns")),
        pl.col("algbw", "busbw").median(), pl.col("between_hosts").max(),
        pl.col("unsure").fill_null(value=False).sum().alias("num_unsure"),
    )
    found = [_kind(row, num_steps) for row in each.iter_rows(named=True)]
    return sorted(found, key=lambda one: (-(one.wait_ns or 0.0) * (one.num_ranks or 1) * one.num_groups, one.op))


def _kind(row: dict[str, Any], num_steps: int) -> CollectiveKind:
    num_groups, num_calls = row["num_groups"], row["num_calls"]
    members = row["num_members"] or row["num_ranks"]
    ranks = list(ranks_of(row["ranks"])) if row["ranks"] else None
    label = group_label(row["name"], row["description"], ranks)
    if num_groups > 1:
        label = f"{num_groups} x {row['description'] or row['name'] or '-'}"
    times = num_groups * (members or 1) * (num_steps or num_calls / num_groups)
    wait, transfer = (None if row[name] is None else row[name] / times for name in ("wait_ns", "transfer_ns"))
    return CollectiveKind(op=row["kind"], group=label, num_groups=num_groups, num_calls=num_calls, num_ranks=members,
                ranks=ranks if num_groups == 1 else None, wait_ns=wait,
                transfer_ns=transfer, calls_per_step=num_calls / num_groups / num_steps if num_steps else None,
                **{name: row[name] for name in ("min_bytes", "max_bytes", "spread_median_ns", "spread_max_ns", "algbw",
                                                "busbw", "between_hosts", "num_unsure")})


def per_collective(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns a row per collective, in order.

    `op` is that of most ranks, and `send` for a send and its receive; `size_bytes` is the largest input, `mean_bytes`
    the mean one; `number` is the sequence number; `first_arrival_ns`, `last_arrival_ns`, `last_end_ns` are times;
    `wait_ns` and `transfer_ns` are sums over ranks, null if no rank knows it; `longest_ns` is the longest time of a
    rank in it; `disagrees` is true if it is on some rank; `ranks` are the ranks that have it. `group_ranks` remains a
    text, see `with_lists`.

    Args:
        rows: `MERGED_COLLECTIVES`, sorted by collective and rank.
    """
    held = pl.col("end_ns") - pl.col("arrival_ns")
    is_sent = (pl.col("op") == "send").any()
    known = [pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)
             for name in ("wait_ns", "transfer_ns")]
    each = rows.group_by("collective", maintain_order=True).agg(
        pl.col("op").first(), is_sent.alias("is_sent"), (pl.col("op").min() != pl.col("op").max()).alias("is_mixed"),
        pl.col(_OF_ALL).first(), pl.col("disagrees").max(), pl.col("sequence").min().alias("number"),
        pl.col("size_bytes").max(), pl.col("size_bytes").mean().alias("mean_bytes"),
        pl.col("arrival_ns").min().alias("first_arrival_ns"),
        pl.col("arrival_ns").max().alias("last_arrival_ns"), pl.col("end_ns").max().alias("last_end_ns"),
        pl.col("end_ns").is_null().sum().alias("num_without_end"), *known, held.max().alias("longest_ns"),
        held.min().alias("shortest_ns"), pl.col("module_path", "phase", "peer", "asynchronous").first(),
        pl.col("rank").alias("ranks"), pl.col("group_ranks").first(),
    )
    return each.with_columns(_op(rows, each), group_key().cast(pl.Categorical).alias("group_key")).drop(
        "is_sent", "is_mixed")


def _op(rows: pl.DataFrame, each: pl.DataFrame) -> pl.Expr:
    """Returns `send` for a send with its receive, and the op of most ranks if they differ."""
    mixed = each.filter("is_mixed", ~pl.col("is_sent"))["collective"]
    found = pl.when("is_sent").then(pl.lit("send")).otherwise("op")
    if len(mixed):
        modes = rows.filter(pl.col("collective").is_in(mixed.implode())).group_by(
            "collective", maintain_order=True).agg(pl.col("op").mode(maintain_order=True).first())
        found = pl.col("collective").replace_strict(modes["collective"], modes["op"], default=found)
    return found.alias("op")


def bandwidths(collectives: pl.DataFrame) -> pl.DataFrame:
    """Returns bandwidths over collectives, as nccl-tests count them.

    Sizes are combined by powers of two: `size_bucket` is the largest power that is at most the mean input of a rank, in
    bytes; 0 for no input.

    Args:
        collectives: As returned by `per_collective`.

    Returns:
        A row per `BY_SIZE`, most bytes first: number of collectives; how many have a bandwidth; total input bytes of a
        rank; algbw and busbw in bytes per second: of the total, which is total size / total time, and median and
        maximum of busbw.
    """
    each = collectives.lazy().with_columns(bytes="mean_bytes")
    bucket = pl.when(pl.col("bytes") >= 1).then(2 ** pl.col("bytes").clip(1).log(2).floor().cast(pl.Int64)).otherwise(0)
    known = pl.col("algbw").is_not_null()
    # within a kind, sizes are proportional to input bytes, so these weight the harmonic mean
    time = (pl.col("bytes") / pl.col("algbw")).filter(known).sum()
    total = pl.col("bytes").filter(known).sum()
    factor = (pl.col("busbw") / pl.col("algbw")).drop_nulls().first()
    return each.with_columns(bucket.cast(pl.Int64).alias("size_bucket")).group_by(BY_SIZE, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("num_collectives"), known.sum().cast(pl.Int64).alias("num_measured"),
        pl.col("bytes").sum().alias("total_bytes"),
        pl.when(time > 0).then(total / time).alias("algbw"),
        pl.when(time > 0).then(total / time * factor).alias("busbw"),
        pl.col("busbw").median().alias("busbw_median"), pl.col("busbw").max().alias("busbw_max"),
    ).sort("total_bytes", "op", "num_ranks", pl.col("group_description").cast(pl.String), "between_hosts",
           descending=[True, *(4 * (False,))]).collect()


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many collectives were found on how many of their ranks, and what is not known of them."""

    num_collectives: int
    num_complete: int
    """Found on all ranks of their group, which agree."""
    num_partial: int
    """Found on several ranks, or on all but these do not agree."""
    num_alone: int
    """Found on one rank of several."""
    num_unmatched: int
    """Calls that were not looked for on other ranks, because their group is unknown."""
    matched_by: Mapping[str, int]
    """Method -> number of collectives matched by it."""
    num_mismatches: int
    num_without_end: int
    """Collectives whose end is not known on some rank."""
    num_unsure: int
    """Collectives for which the clocks are too uncertain to show which rank came last."""
    num_spreads: int
    """Collectives whose arrival spread is known."""
    num_disagreeing: int
    """Collectives whose waits by clocks and by durations contradict each other, on some rank."""

    @property
    def matched_ratio(self) -> float | None:
        """Fraction of collectives that are complete; None if there are no collectives."""
        return self.num_complete / self.num_collectives if self.num_collectives else None


def coverage(collectives: pl.DataFrame) -> Coverage:
    """Counts how completely collectives were found.

    Args:
        collectives: As returned by `per_collective`.
    """
    unmatched = pl.col("matched_by").is_null()
    alone = ~pl.col("complete") & (pl.col("num_ranks") < 2) & ~unmatched
    methods = collectives["matched_by"].drop_nulls().value_counts(sort=True)
    counted = {
        "num_complete": pl.col("complete"), "num_alone": alone,
        "num_partial": ~pl.col("complete") & ~alone & ~unmatched, "num_unmatched": unmatched,
        "num_mismatches": pl.col("mismatch").is_not_null() & ~unmatched,
        "num_without_end": pl.col("num_without_end") > 0,
        "num_unsure": pl.col("unsure"), "num_spreads": pl.col("arrival_spread_ns").is_not_null(),
        "num_disagreeing": pl.col("disagrees")}
    numbers = collectives.select(condition.fill_null(value=False).sum().alias(name)
                                 for name, condition in counted.items()).row(0, named=True)
    return Coverage(num_collectives=len(collectives), matched_by=dict(methods.iter_rows()), **numbers)


def group_coverage(collectives: pl.DataFrame) -> pl.DataFrame:
    """Counts collectives by how completely they were found, per group.

    Args:
        collectives: As returned by `per_collective`.

    Returns:
        A row per `BY_GROUP` (largest groups first): `num_collectives`; of these, `matched` are complete and agree,
        `partial` were found on some ranks or do not agree, `unmatched` were found on one rank only; and `mismatched`
        have a `mismatch`.
    """
    is_whole, is_lonely = pl.col("complete"), pl.col("num_ranks") == 1
    found = collectives.group_by(BY_GROUP).agg(
        pl.len().cast(pl.Int64).alias("num_collectives"),
        *(flag.sum().cast(pl.Int64).alias(name) for name, flag in (
            ("matched", is_whole), ("partial", ~is_whole & ~is_lonely), ("unmatched", ~is_whole & is_lonely),
            ("mismatched", pl.col("mismatch").is_not_null()))))
    return with_lists(found).sort(
        pl.col("group_ranks").list.len(), "group", "matched_by", descending=[True, False, False],
        nulls_last=True).select(*BY_GROUP, pl.exclude(BY_GROUP))
