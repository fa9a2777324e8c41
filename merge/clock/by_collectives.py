"""Estimates clocks from matched collectives, for runs without samples, and checks any clock against them.

No rank leaves an all_reduce before the last one has entered it. This bounds the offset of two clocks on both sides
without any assumption. That all ranks leave at about the same time tells where between the bounds the offset is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import polars as pl

from distprof.contract.collective_ops import BOUNDING_CLOCKS, WITHOUT_DATA
from distprof.merge.clock.fit import Fit, fit_line
from distprof.merge.clock.model import Alignment, Check, Clock

ENOUGH = 3
"""Number of common collectives from which on the clocks of two hosts are compared. The bounds of each hold on their
own; the median of three is robust against one collective that ranks left far apart."""
COLUMNS = ("collective", "rank", "start_ns", "end_ns")
COARSEST_NS = 1000
"""Profilers write times at least as precisely as this."""


def synchronising(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the columns `COLUMNS` of the collectives that no rank leaves before the last one has entered.

    Args:
        rows: Rows as returned by `match`.
    """
    certain, others = synchronising_apart(rows)
    return certain if others is None or others.is_empty() else pl.concat([certain, others]).sort(
        "collective", maintain_order=True)


def synchronising_apart(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Returns them in two parts: certain matches, and inferred matches, which count only if all of them are complete.

    The latter are None if an inferred match is incomplete.
    """
    rows = rows.select("collective", "rank", "matched_by", "complete", "mismatch", "op", "size_bytes", "start_ns",
                       "enqueue_ns", "end_ns", "num_ranks")  # lists and texts of a million rows are large
    certain = pl.col("matched_by").is_in(("id", "sequence"))
    found = _synchronising(rows.filter(certain))
    # the order alone does not show which of several equal collectives a rank lacks: then no inferred match counts
    if not rows.filter(~certain)["complete"].all():
        return found, None
    return found, _synchronising(rows.filter(~certain.fill_null(value=False)))


def _synchronising(rows: pl.DataFrame) -> pl.DataFrame:
    came = pl.coalesce("start_ns", "enqueue_ns")
    return rows.filter(
        pl.col("complete") | pl.col("mismatch").is_null(), pl.col("op").is_in(BOUNDING_CLOCKS),
        (pl.col("size_bytes").is_null() | (pl.col("size_bytes") > 0)) | pl.col("op").is_in(WITHOUT_DATA),
        (pl.col("end_ns").is_not_null() & came.is_not_null()).all().over("collective"), pl.col("num_ranks") > 1,
    ).select("collective", "rank", came.alias("start_ns"), "end_ns")


def precision_of(table: pl.DataFrame) -> int:
    """Returns how precisely times are written, as `precision_ns` of the functions below: that of the coarsest rank.

    All times of a rank differ by multiples of it: 1000 in traces in whole us, 250 in those that went through doubles.

    Args:
        table: As for `clock_by_collectives`.
    """
    coarsest = 1
    for part in table.partition_by("rank"):
        times = part.select("start_ns", "end_ns").to_numpy().reshape(-1)
        apart = int(np.gcd.reduce(times - times[0]))
        coarsest = max(coarsest, math.gcd(apart, COARSEST_NS) if apart else 1)
    return coarsest


def clock_by_collectives(table: pl.DataFrame, hosts: Mapping[int, Hashable], *, precision_ns: int = 1) -> Clock:
    """Estimates the clock of every host relative to that of the lowest rank.

    The differences of the ends of collectives on two hosts give the offset (median) and the drift (Theil-Sen), limited
    to what causality allows; the uncertainty is how far the truth may be from that.

    Args:
        table: A row per rank and collective with the columns `COLUMNS`, times in ns of that rank's clock; only
            collectives of `BOUNDING_CLOCKS` that are matched on all ranks, with known ends.
        hosts: Rank -> host, for every rank of the run; ranks with equal values read the same clock, None equals
            nothing.
        precision_ns: Error bound of each time: see `precision_of`; more for GPU times on the host's clock.
    """
    domains = {rank: ("rank", rank) if host is None else ("host", host) for rank, host in hosts.items()}
    sides = _sides(table, domains)
    order = sorted(set(domains.values()), key=lambda domain: min(rank for rank in domains if domains[rank] == domain))
    reached = {order[0]: Alignment(uncertainty_ns=0, drift_uncertainty_ppm=0.0)}
    waiting, excess_ns = [order[0]], 0
    while waiting:
        other = waiting.pop(0)
        for domain in [domain for domain in order if domain not in reached]:
            found = _pair(sides.get(domain), sides.get(other), 2 * precision_ns)
            if found is not None:
                reached[domain] = found.through(reached[other], number=len(reached))
                excess_ns = max(excess_ns, found.excess_ns)
                waiting.append(domain)
    lost = [domain for domain in order if domain not in reached]
    clocks = {rank: reached.get(domain) or Alignment(clock=len(reached) + lost.index(domain))
              for rank, domain in domains.items()}
    if len(order) == 1:
        return Clock(method="shared", ranks=clocks, num_hosts=1)
    return Clock(method="collectives" if len(reached) > 1 else "none", reason="too_few_collectives" if lost else None,
                 num_collectives=table["collective"].n_unique(), ranks=clocks,
                 num_hosts=0 if None in hosts.values() else len(order),
                 excess_ns=excess_ns)


def _sides(table: pl.DataFrame, domains: Mapping[int, Hashable]) -> dict[Hashable, pl.DataFrame]:
    """Returns per clock when the last of its ranks entered each collective, and when the first one left."""
    names = sorted(set(domains.values()), key=str)
    numbers = {rank: names.index(domain) for rank, domain in domains.items()}
    frame = table.filter(pl.col("rank").is_in(list(numbers))).with_columns(
        pl.col("rank").replace_strict(numbers, return_dtype=pl.Int64).alias("domain"))
    frame = frame.group_by("domain", "collective").agg(pl.col("start_ns").max(), pl.col("end_ns").min())
    return {names[int(key[0])]: part.sort("end_ns") for key, part in frame.partition_by("domain", as_dict=True).items()}


def _pair(this: pl.DataFrame | None, other: pl.DataFrame | None, slack_ns: int) -> Fit | None:
    """Fits the line from one clock to another; None if too few collectives join them."""
    if this is None or other is None:
        return None
    both = this.join(other, on="collective", suffix="_other").sort("end_ns")
    if len(both) < ENOUGH:
        return None
    start, end, start_there, end_there = (both[name].to_numpy() for name in (
        "start_ns", "end_ns", "start_ns_other", "end_ns_other"))
    lower = np.stack([end, start_there - end - slack_ns], axis=1)
    upper = np.stack([start, end_there - start + slack_ns], axis=1)
    return fit_line(lower, upper, points=np.stack([end, end_there - end], axis=1),
                    window=(int(start.min()), int(end.max())))


def check_clock(table: pl.DataFrame, clock: Clock, *, precision_ns: int = 1) -> Check:
    """Checks an alignment of any kind against causality.

    Args:
        table: As for `clock_by_collectives`, with times on the ranks' own clocks.
        clock: The alignment.
        precision_ns: As for `clock_by_collectives`.
    """
    return checked([apart(table, clock)], clock, precision_ns=precision_ns)


def apart(table: pl.DataFrame, clock: Clock) -> pl.DataFrame:
    """Returns per collective by how much a rank left before all had come, `violation`, and the `spread` of ends; ns.

    There is a row per collective of several ranks whose clocks are known. Args are those of `check_clock`.
    """
    used = table.filter(pl.col("rank").is_in(clock.known_ranks))
    shifted = used.with_columns(
        pl.Series(name, clock.to_common_ns(used["rank"].to_numpy(), used[name].to_numpy())) for name in COLUMNS[2:])
    return shifted.group_by("collective").agg(
        (pl.col("start_ns").max() - pl.col("end_ns").min()).alias("violation"),
        (pl.col("end_ns").max() - pl.col("end_ns").min()).alias("spread"), pl.len()).filter(pl.col("len") > 1).select(
        "violation", "spread")


def checked(parts: Sequence[pl.DataFrame], clock: Clock, *, precision_ns: int = 1) -> Check:
    """Combines the results of `apart` for parts of the collectives."""
    each = pl.concat(parts)
    broken = each.filter(pl.col("violation") > 2 * precision_ns)["violation"].to_list()
    spread = {name: each["spread"].quantile(share, interpolation="higher")
              for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))}
    return Check(num_collectives=len(each), violations=len(broken), largest_violation_ns=max(broken, default=None),
                 allowed_violation_ns=(clock.pair_uncertainty_ns(clock.known_ranks) or 0) + 2 * precision_ns,
                 end_spread_ns={name: int(value) for name, value in spread.items() if value is not None})
