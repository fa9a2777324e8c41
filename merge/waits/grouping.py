"""Waits added up by what a user asks for."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import polars as pl

from distprof.errors import UsageError

BY = {"line": ("file", "line", "function"), "op": ("op", "library_call"), "for": ("waits_for",),
      "module": ("module_path",), "phase": ("phase",), "thread": ("thread",), "rank": ("rank",), "step": ("step",)}
"""What `--by` takes -> columns."""
KEYS = tuple(dict.fromkeys(("op", "library_call", "waits_for", "device", *(name for names in BY.values()
                                                                            for name in names))))
SORTS = ("blocked_ns", "calls", "mean_ns", "longest_ns")
"""What `--sort` takes, of:"""
NUMBERS = ("calls", "blocking_calls", "blocked_ns", "mean_ns", "longest_ns", "step_ratio", "num_ranks", "slowest_rank",
           "slowest_ns")
"""Columns of numbers. `blocking_calls`: those that waited for something; the others would on a device. `mean_ns`,
`longest_ns`: of one of these. `step_ratio`: time blocked on the thread of the steps / the time of all steps that are
chosen. `slowest_ns`: time blocked of `slowest_rank`, the rank with most of it."""


def grouped(rows: pl.DataFrame, by: Sequence[str], *, sort: str, total_ns: int | None) -> pl.DataFrame:
    """Adds rows up; most time first, then most calls.

    Args:
        rows: Of `run_waits`.
        by: Names of `BY`; the others are grouped away.
        sort: A name of `SORTS`.
        total_ns: Time of all steps of all ranks that are chosen, if known.

    Returns:
        `KEYS`, null where grouped away or not the same for all, and `NUMBERS`.

    Raises:
        UsageError: There is no such name.
    """
    keys = [key for one in dict.fromkeys(by) for key in BY[_known(one, tuple(BY), "--by")]]
    order = _known(sort, SORTS, "--sort")
    blocking = pl.col("blocking")
    found = rows.group_by(keys, maintain_order=True).agg(
        pl.col("calls").sum(), pl.col("blocked_ns").sum(), pl.col("longest_ns").max(),
        blocking_calls=pl.col("calls").filter(blocking).sum(), num_ranks=pl.col("rank").n_unique(),
        of_steps_ns=pl.col("blocked_ns").filter(pl.col("thread").fill_null("steps") == "steps").sum(),
        **{name: pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()) for name in KEYS if name not in keys})
    ratio = pl.col("of_steps_ns") / total_ns if total_ns else pl.lit(None, pl.Float64)
    return found.join(_slowest(rows, keys), on=keys, how="left", nulls_equal=True, maintain_order="left").with_columns(
        mean_ns=pl.when(pl.col("blocking_calls") > 0).then(pl.col("blocked_ns") / pl.col("blocking_calls")),
        step_ratio=ratio).sort(order, "calls", descending=True, nulls_last=True, maintain_order=True).select(
            *KEYS, *NUMBERS)


def _slowest(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Null for one rank, and where nobody waited."""
    if "rank" in keys:
        return rows.select(*keys, slowest_rank=pl.lit(None, pl.Int64), slowest_ns=pl.lit(None, pl.Int64)).unique()
    each = rows.group_by([*keys, "rank"]).agg(pl.col("blocked_ns").sum()).sort("rank")
    several = (pl.len() > 1) & (pl.col("blocked_ns").max() > 0)
    return each.group_by(keys).agg(
        slowest_rank=pl.when(several).then(pl.col("rank").get(pl.col("blocked_ns").arg_max())),
        slowest_ns=pl.when(several).then(pl.col("blocked_ns").max()))


def _known(name: str, names: Sequence[str], option: str) -> str:
    if name not in names:
        near = get_close_matches(name, names, n=3)
        raise UsageError(f"unknown value {name!r} for {option}; choose from {', '.join(names)}",
                         hint=f"did you mean {' or '.join(near)}?" if near else None)
    return name
