"""The table of what each rank spends a step on."""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.merge.blame.breakdown import PARTS
from distprof.units import UNKNOWN

MOST_RANKS = 16
"""From more ranks on only the slowest, the median and the fastest have a row."""
HEADER = ("step in ms", "step", *PARTS, "overlapped comm.")


def mean_steps(breakdown: pl.DataFrame) -> list[dict[str, Any]]:
    """A row per rank, mean over its steps; `overlap_ratio` is of all its communication."""
    columns = ["duration_ns", *(f"{part}_ns" for part in PARTS), "overlapped_ns", "overlap_ratio"]
    return breakdown.group_by("rank").agg(pl.col(columns).mean()).sort("rank").to_dicts()


def breakdown_rows(breakdown: pl.DataFrame) -> list[tuple[str, ...]]:
    """Cells under `HEADER`."""
    ranks = mean_steps(breakdown)
    shown = [(f"rank {one['rank']}", one) for one in ranks]
    if len(ranks) > MOST_RANKS:
        by_time = sorted(ranks, key=lambda one: -one["duration_ns"])
        picked = {"slowest": by_time[0], "median": by_time[len(by_time) // 2], "fastest": by_time[-1]}
        shown = [(f"rank {one['rank']} ({why})", one) for why, one in picked.items()]
    if len(ranks) > 1:
        shown.append((f"mean of {len(ranks)}", _mean(ranks)))
    return [_row(title, one) for title, one in shown]


def _mean(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ranks[0]:
        known = [one[name] for one in ranks if one[name] is not None]
        found[name] = sum(known) / len(known) if known else None
    return found


def _row(title: str, one: dict[str, Any]) -> tuple[str, ...]:
    whole = one["duration_ns"]
    parts = (_part(one[f"{part}_ns"], whole) for part in PARTS)
    overlap = "-" if one["overlap_ratio"] is None else f"{one['overlapped_ns'] / 1e6:.2f}"
    return title, UNKNOWN if whole is None else f"{whole / 1e6:.2f}", *parts, overlap


def _part(ns: float | None, whole: float | None) -> str:
    if ns is None or not whole:
        return UNKNOWN
    return f"{ns / 1e6:.2f} {100 * ns / whole:4.1f} %"
