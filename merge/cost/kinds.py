"""Sums up collectives by op and group: how many, how large, what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from distprof.merge.cost.choice import group_label

NEEDED = ("op", "group_key", "group", "group_description", "group_ranks", "num_ranks", "size_bytes",
          "arrival_spread_ns", "wait_ns", "transfer_ns", "algbw", "busbw", "between_hosts", "unsure")
"""Columns of `per_collective` that are looked at."""
EACH_GROUP = 12
"""From more lines than this on, groups with one description and size are one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveKind:
    """All collectives of one op in one group, or in groups that are alike."""

    op: str
    group: str
    """Label of the group, or `64 x mesh_tp` for many that are alike."""
    num_groups: int
    ranks: list[int] | None
    """Of the group; None for several, and where they are not known."""
    num_ranks: int | None
    """Of one group; None where that is not known."""
    num_calls: int
    calls_per_step: float | None
    """In one group; None where no step is known."""
    min_bytes: int | None
    """Input of a rank; None where it is not known. Likewise the largest one."""
    max_bytes: int | None
    spread_median_ns: float | None
    spread_max_ns: int | None
    wait_ns: float | None
    """A step, mean over ranks. Likewise the transfer. A call, where no step is known."""
    transfer_ns: float | None
    algbw: float | None
    """Bytes a second, median over calls."""
    busbw: float | None
    between_hosts: bool | None
    num_unsure: int
    """Calls whose clocks are not sure enough to show who came last."""


def kinds(collectives: pl.DataFrame, num_steps: int) -> list[CollectiveKind]:
    """Sums up; the largest waits first.

    Args:
        collectives: `NEEDED`, as `per_collective` gives them.
        num_steps: Steps that they lie in; 0 where these are not known.
    """
    if collectives.is_empty():
        return []
    frame = collectives.with_columns(pl.col("group_ranks").list.len().cast(pl.Int64).alias("members"))
    keys = ["op", "group_key"]
    if frame.select(pl.struct(keys).n_unique()).item() > EACH_GROUP:
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
    label = group_label(row["name"], row["description"], row["ranks"])
    if num_groups > 1:
        label = f"{num_groups} x {row['description'] or row['name'] or '-'}"
    times = num_groups * (members or 1) * (num_steps or num_calls / num_groups)
    wait, transfer = (None if row[name] is None else row[name] / times for name in ("wait_ns", "transfer_ns"))
    return CollectiveKind(op=row["kind"], group=label, num_groups=num_groups, num_calls=num_calls, num_ranks=members,
                ranks=row["ranks"] if num_groups == 1 else None, wait_ns=wait,
                transfer_ns=transfer, calls_per_step=num_calls / num_groups / num_steps if num_steps else None,
                **{name: row[name] for name in ("min_bytes", "max_bytes", "spread_median_ns", "spread_max_ns", "algbw",
                                                "busbw", "between_hosts", "num_unsure")})
