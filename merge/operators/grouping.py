"""Groups and sums operators as a user asks, with shares, rates and the spread over ranks, and sorts them.

The spread names the rank that spends most time on a group, unless that may be chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from distprof.errors import one_of
from distprof.merge.chance import chances
from distprof.merge.operators.counted_work import LATENCY_RATIO
from distprof.merge.operators.rank_share import as_texts
from distprof.merge.operators.sums import BY, KEYS, RunSums, added_up
from distprof.merge.operators.timeline.grouped_calls import MEMORY

MOST_NUMBERS = 10_000_000
"""Limit on values that the permutation test deals out to ranks: with many ranks and steps, fewer groups are tested."""
DEALT = 2_000
MOST_GROUPS = 100
NAMES = {"slowest_rank": pl.Int64(), "slowest_ratio": pl.Float64(), "slowest_p_value": pl.Float64()}


def spread(sums: RunSums, busy: str) -> pl.DataFrame:
    """Compares ranks in each group.

    Args:
        sums: Sums of a run.
        busy: The column of self time.

    Returns:
        `group`, its index; `slowest_rank`, the first rank with the most self time; `slowest_ratio`, its self time /
        that of
        the median rank, null for a single rank; `slowest_p_value`: how likely some rank would be as slow in some group
        if
        all were equal, null without three steps that all ranks have, and for groups that take little of the time. No
        rows
        if there is nothing to compare.
    """
    ranks = sums.ranks
    if "rank" in sums.keys or len(ranks) < 2:
        return pl.DataFrame(schema={"group": pl.UInt32(), **NAMES})
    each, median = _added(sums.busy(busy), ["group", "rank"], pl.col(busy).sum()), pl.col(busy).median()
    found = each.group_by("group").agg(
        slowest_rank=pl.when(pl.len() > 1).then(pl.col("rank").filter(pl.col(busy) == pl.col(busy).max()).min()),
        slowest_ratio=pl.when((pl.len() > 1) & (median > 0)).then(pl.col(busy).max() / median))
    return found.join(_significance(sums, pl.Series(ranks), busy), on="group", how="left")


def _added(parts: Iterable[pl.DataFrame], keys: Sequence[str], what: pl.Expr) -> pl.DataFrame:
    """Aggregates `what` over rows that share keys, separately for each part."""
    return pl.concat([part.group_by(keys).agg(what) for part in parts])


def _significance(sums: RunSums, ranks: pl.Series, busy: str) -> pl.DataFrame:
    def timed() -> Iterator[pl.DataFrame]:
        return (part.filter(pl.col("step").is_not_null()) for part in sums.busy(busy))

    of_steps = _added(timed(), ["step"], pl.col("rank").n_unique().cast(pl.Int64)).group_by("step").sum()
    common = of_steps.filter(pl.col("rank") == len(ranks))["step"].sort()
    size = max(len(ranks) * len(common) * DEALT, 1)
    largest = _added(timed(), ["group"], pl.col(busy).sum()).group_by("group").sum().sort(
        busy, "group", descending=[True, False])
    groups = largest.head(min(max(MOST_NUMBERS // size, 1), MOST_GROUPS)).select("group")
    work = np.zeros((len(ranks), len(common), len(groups)))
    for part in timed():
        own = part.join(groups.with_row_index("column"), on="group").filter(pl.col("step").is_in(common.implode()))
        place = (ranks.search_sorted(own["rank"]), common.search_sorted(own["step"]), own["column"])
        work[tuple(one.to_numpy() for one in place)] = own[busy].to_numpy()
    found: Any = chances(work - np.median(work, axis=0)) if len(groups) else None
    values = pl.Series("slowest_p_value", found, pl.Float64()) if found is not None else pl.lit(None, pl.Float64())
    return groups.with_columns(slowest_p_value=values)


NUMBERS = ("calls", "self_host_ns", "host_ns", "self_device_ns", "device_ns", "mean_ns", "min_ns", "max_ns", "std_ns",
           "share", "cumulative_share", "flops", "causal_flops", "bytes", "flops_per_second", "bytes_per_second",
           "flops_per_byte", "roofline_ratio", *MEMORY, "num_ranks", "slowest_rank", "slowest_ratio", "slowest_p_value")
"""Columns of numbers. `mean_ns`, `min_ns`, `max_ns`, `std_ns`: durations of calls. `share`: of the self time of
everything selected, on devices if anything ran on one. Rates: over the time of the counted calls, including what lies
inside them, since that does the work. `causal_flops`: without what causal masks hide; `roofline_ratio`: least time for
these and the bytes at the peak rates of the devices / that time. `slowest_ratio`: self time of `slowest_rank` / that of
the median rank; `slowest_p_value`: probability that the sum of any compared row is as large if ranks are equal."""
TORCH_SORTS = {
    "cpu_time": "mean_host_ns", "cpu_time_total": "host_ns", "self_cpu_time_total": "self_host_ns",
    "cuda_time": "mean_device_ns", "cuda_time_total": "device_ns", "self_cuda_time_total": "self_device_ns",
    "device_time": "mean_device_ns", "device_time_total": "device_ns", "self_device_time_total": "self_device_ns",
    "count": "calls", **{f"{device}_memory_usage": "kept_bytes" for device in ("cpu", "cuda", "device")},
    **{f"self_{device}_memory_usage": "self_kept_bytes" for device in ("cpu", "cuda", "device")}}
"""Values of `sort_by` in torch's `key_averages().table` -> our columns."""
SORTS = ("self", *NUMBERS, *TORCH_SORTS)
"""What `--sort` accepts; self: self time, on devices if anything ran on one."""


def grouped(rows: pl.DataFrame, by: Sequence[str], *, sort: str = "self") -> pl.DataFrame:
    """Applies `grouped_sums` to rows of `run_operators` that are not summed yet."""
    sums = RunSums(columns_of(by))
    sums.add(added_up(rows, sums.keys))
    return grouped_sums(sums, sort=sort)


def columns_of(by: Sequence[str]) -> list[str]:
    """Returns the columns for names of `BY`, each once.

    Raises:
        UsageError: There is no such name.
    """
    return [BY[one_of(one, tuple(BY), "--by")] for one in dict.fromkeys(by)]


def grouped_sums(sums: RunSums, *, sort: str = "self") -> pl.DataFrame:
    """Returns the groups of a run as a table.

    Args:
        sums: Sums of all ranks.
        sort: A name in `SORTS`; largest first.

    Returns:
        `KEYS`, null if grouped away or not the same for all; `NUMBERS`; and `bound`: compute, memory, or latency for an
        operator that is far from both limits. Null if FLOPs, bytes or rates are unknown.

    Raises:
        UsageError: There is no such name.
    """
    column, groups = one_of(sort, SORTS, "--sort"), sums.groups.with_row_index("group")
    busy = "self_device_ns" if groups["self_device_ns"].sum() else "self_host_ns"
    worked = busy.removeprefix("self_").removesuffix("_ns")
    timed = {name: pl.col(f"{name}_on_{worked}") for name in ("counted_ns", "limited_ns")}
    found = _derived(groups.with_columns(**timed)).join(
        spread(sums, busy), on="group", how="left", maintain_order="left")
    order = {**dict.fromkeys(("self", "share", "cumulative_share"), busy), **TORCH_SORTS}.get(column, column)
    found = found.sort(order, descending=True, nulls_last=True, maintain_order=True)
    total = found[busy].sum()
    share = (pl.col(busy) / total) if total else pl.lit(None, pl.Float64)
    return as_texts(found.with_columns(share=share).with_columns(cumulative_share=pl.col("share").cum_sum()).select(
        *KEYS, *NUMBERS, "bound"))


def _derived(found: pl.DataFrame) -> pl.DataFrame:
    mean = pl.col("duration_ns") / pl.col("calls")
    seconds = pl.when(pl.col("counted_ns") > 0).then(pl.col("counted_ns") / 1e9)
    return found.with_columns(
        mean_ns=mean, mean_host_ns=pl.col("host_ns") / pl.col("calls"),
        mean_device_ns=pl.col("device_ns") / pl.col("calls"),
        kept_bytes=pl.col("allocated_bytes") - pl.col("freed_bytes"),
        self_kept_bytes=pl.col("self_allocated_bytes") - pl.col("self_freed_bytes"),
        std_ns=(pl.col("squared_ns") / pl.col("calls") - mean ** 2).clip(0).sqrt(),
        flops_per_second=pl.col("flops") / seconds, bytes_per_second=pl.col("bytes") / seconds,
        flops_per_byte=pl.when(pl.col("bytes") > 0).then(pl.col("flops") / pl.col("bytes")),
        roofline_ratio=pl.when((pl.col("limited_ns") > 0) & (pl.col("least_ns") > 0)).then(
            pl.col("least_ns") / pl.col("limited_ns")),
    ).with_columns(bound=pl.when(pl.col("roofline_ratio") < LATENCY_RATIO).then(pl.lit("latency")).when(
        pl.col("roofline_ratio").is_not_null()).then(
        pl.when(pl.col("compute_ns") >= pl.col("memory_ns")).then(pl.lit("compute")).otherwise(pl.lit("memory"))))
