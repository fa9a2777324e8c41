"""Operators added up by what a user asks for, with shares, rates and the spread over ranks, in an order."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import polars as pl

from distprof.errors import UsageError
from distprof.merge.operators.amounts import COSTS, MEMORY
from distprof.merge.operators.limits import LATENCY_RATIO
from distprof.merge.operators.operator_rows import as_texts
from distprof.merge.operators.spread import spread

BY = {"op": "op", "type": "type", "module": "module_path", "class": "class_name", "shape": "shapes",
      "dtype": "dtypes", "phase": "phase", "rank": "rank", "stream": "stream", "step": "step", "stack": "stack"}
"""What `--by` takes -> column."""
KEYS = tuple(BY.values())
NUMBERS = ("calls", "self_host_ns", "host_ns", "self_device_ns", "device_ns", "mean_ns", "min_ns", "max_ns", "std_ns",
           "share", "cumulative_share", "flops", "bytes", "flops_per_second", "bytes_per_second", "flops_per_byte",
           "roofline_ratio", *MEMORY, "num_ranks", "slowest_rank", "slowest_ratio", "slowest_p_value")
"""Columns of numbers. `mean_ns`, `min_ns`, `max_ns`, `std_ns`: of the duration of a call. `share`: of the self time of
all that is chosen, on devices where anything ran on one. Rates: over the time of the calls that were counted, with what
lies inside: that is how they are done. `roofline_ratio`: least time for them at the peak rates of the devices / that.
`slowest_ratio`: self time of `slowest_rank` / that of the median rank; `slowest_p_value`: of the sum of any of the
rows that are compared, if ranks are equal."""
TORCH_SORTS = {
    "cpu_time": "mean_host_ns", "cpu_time_total": "host_ns", "self_cpu_time_total": "self_host_ns",
    "cuda_time": "mean_device_ns", "cuda_time_total": "device_ns", "self_cuda_time_total": "self_device_ns",
    "device_time": "mean_device_ns", "device_time_total": "device_ns", "self_device_time_total": "self_device_ns",
    "count": "calls", **{f"{device}_memory_usage": "kept_bytes" for device in ("cpu", "cuda", "device")},
    **{f"self_{device}_memory_usage": "self_kept_bytes" for device in ("cpu", "cuda", "device")}}
"""Names of torch's `key_averages().table(sort_by=...)` -> ours."""
SUMS = ("calls", "host_ns", "self_host_ns", "device_ns", "self_device_ns", "squared_ns", "duration_ns", "compute_ns",
        "memory_ns", "least_ns")
"""Of parts: what rows have, and what follows from each of them."""
SORTS = ("self", *NUMBERS, *TORCH_SORTS)
"""What `--sort` takes; self: self time, on devices where anything ran on one."""


def grouped(rows: pl.DataFrame, by: Sequence[str], *, sort: str = "self") -> pl.DataFrame:
    """`grouped_parts` of rows of `run_operators` that are not added up yet."""
    return grouped_parts(added_up(rows, columns_of(by)), by, sort=sort)


def columns_of(by: Sequence[str]) -> list[str]:
    """Columns of names of `BY`, each once.

    Raises:
        UsageError: There is no such name.
    """
    return [BY[_known(one, tuple(BY), "--by")] for one in dict.fromkeys(by)]


def grouped_parts(parts: pl.DataFrame, by: Sequence[str], *, sort: str = "self") -> pl.DataFrame:
    """Adds rows up.

    Args:
        parts: Rows of ranks, as `added_up` gives them for these columns.
        by: Names of `BY`; the others are grouped away.
        sort: A name of `SORTS`; largest first.

    Returns:
        `KEYS`, null where grouped away or not the same for all; `NUMBERS`; and `bound`: compute, memory, or latency for
        an operator that is far from both limits. Null where FLOPs, bytes or rates are unknown.

    Raises:
        UsageError: There is no such name.
    """
    keys, column = columns_of(by), _known(sort, SORTS, "--sort")
    busy = "self_device_ns" if parts["self_device_ns"].sum() else "self_host_ns"
    worked = busy.removeprefix("self_").removesuffix("_ns")
    away = [name for name in KEYS if name not in keys]
    found = parts.group_by(keys, maintain_order=True).agg(
        *(pl.col(name).sum() for name in SUMS),
        *(_sum_of_known(name) for name in (*COSTS, *MEMORY)),
        pl.col("min_ns").min(), pl.col("max_ns").max(), num_ranks=pl.col("rank").n_unique(),
        **{name: pl.col(f"{name}_on_{worked}").sum() for name in ("counted_ns", "limited_ns")},
        **{name: pl.when((pl.col(name).n_unique() == 1) & ~_mixed(name).any()).then(pl.col(name).first())
           for name in away})
    found = _derived(found, busy).join(spread(parts, keys, busy), on=keys, how="left", nulls_equal=True,
                                       maintain_order="left")
    order = {"self": busy, **TORCH_SORTS}.get(column, column)
    kept = [name for name in (*KEYS, *NUMBERS, "bound") if name in found.columns]
    found = found.select(*dict.fromkeys((*kept, order))).sort(order, descending=True, nulls_last=True,
                                                              maintain_order=True)
    total = found[busy].sum()
    share = (pl.col(busy) / total) if total else pl.lit(None, pl.Float64)
    return as_texts(found.with_columns(share=share).with_columns(cumulative_share=pl.col("share").cum_sum()).select(
        *KEYS, *NUMBERS, "bound"))


def added_up(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Adds up rows of a rank and step that share `keys`: all that `grouped_parts` of these takes.

    Args:
        rows: Of `run_operators`, of all ranks or of some.
        keys: Columns, of `KEYS`.

    Returns:
        `KEYS`, null where they are not the same for all; sums.
    """
    apart = [*dict.fromkeys((*keys, "rank", "step"))]
    counted, limited = (pl.col(name).is_not_null() for name in ("flops", "compute_ns"))
    duration = pl.when(pl.col("host_ns") > 0).then("host_ns").otherwise("device_ns")
    away = [name for name in KEYS if name not in apart]
    return rows.group_by(apart, maintain_order=True).agg(
        *(pl.col(name).sum() for name in SUMS if name in rows.columns),
        *(_sum_of_known(name) for name in (*COSTS, *MEMORY)),
        pl.col("min_ns").min(), pl.col("max_ns").max(), duration_ns=duration.sum(),
        least_ns=pl.max_horizontal("compute_ns", "memory_ns").sum(),
        **{f"{what}_ns_on_{worked}": pl.col(f"{worked}_ns").filter(has).sum()
           for what, has in (("counted", counted), ("limited", limited)) for worked in ("host", "device")},
        **{name: pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()) for name in away},
        **{_mixed(name).meta.output_name(): pl.col(name).n_unique() > 1 for name in away},
    ).with_columns(pl.lit(value=False).alias(_mixed(name).meta.output_name()) for name in ("rank", "step"))


def _sum_of_known(name: str) -> pl.Expr:
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)


def _mixed(name: str) -> pl.Expr:
    """Whether rows with several values of a column were added up."""
    return pl.col(f"mixed {name}")


def _derived(found: pl.DataFrame, busy: str) -> pl.DataFrame:
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


def _known(name: str, names: Sequence[str], option: str) -> str:
    if name not in names:
        near = get_close_matches(name, names, n=3)
        raise UsageError(f"expected one of {', '.join(names)} for {option}, found {name!r}",
                         hint=f"did you mean {' or '.join(near)}?" if near else None)
    return name
