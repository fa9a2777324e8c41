"""`distprof comms --slowest N`: a table of the collectives that took longest."""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.contract.ops import POINT_TO_POINT
from distprof.merge.clock.model import Clock
from distprof.merge.cost.choice import group_label
from distprof.merge.text.phrases import known_to
from distprof.merge.text.timeline import gigabytes, issued_in
from distprof.reporters.page import Page
from distprof.units import UNKNOWN, duration, size


def slowest(collectives: pl.DataFrame, number: int) -> pl.DataFrame:
    """Those in which a rank was longest, waiting included; the longest first.

    Args:
        collectives: As `per_collective` gives them.
        number: How many.
    """
    return collectives.sort("longest_ns", "collective", descending=[True, False], nulls_last=True).head(number)


def list_slowest(collectives: pl.DataFrame, number: int, clock: Clock, page: Page) -> None:
    """Prints the table."""
    if collectives.is_empty():
        page.line("no collective was recorded in the trace pass")
        return
    page.table(
        ("step", "op", "group", "#", "ranks", "bytes", "dtype", "spread", "wait", "transfer", "shortest", "longest",
         "busbw GB/s", "late rank", "issued in"),
        [_row(one, clock) for one in slowest(collectives, number).iter_rows(named=True)], left=3)
    if len(collectives) > number:
        page.line(f"... {len(collectives) - number} more of {len(collectives)}: --slowest {len(collectives)}")
    page.line("wait and transfer: mean over ranks; shortest and longest: time of a rank from its arrival to its end, "
              "waiting included")


def _row(one: dict[str, Any], clock: Clock) -> tuple[str, ...]:
    unsure_ns = clock.pair_uncertainty_ns(one["ranks"])
    is_pair = one["op"] in POINT_TO_POINT
    members = len(one["group_ranks"]) if one["group_ranks"] is not None else "?"
    sides = [str(rank) for rank in one["ranks"]] if len(one["ranks"]) > 1 else [str(one["ranks"][0]), str(one["peer"])]
    late = UNKNOWN if one["late_rank"] is None else f"{one['late_rank']}{' ?' if one['unsure'] else ''}"
    return (
        UNKNOWN if one["step"] is None else str(one["step"]), one["op"],
        group_label(one["group"], one["group_description"], one["group_ranks"]),
        UNKNOWN if one["number"] is None else str(one["number"]),
        " - ".join(sides) if is_pair else f"{one['num_ranks']}/{members}",
        size(one["size_bytes"]), one["dtype"] or UNKNOWN, known_to(one["arrival_spread_ns"], unsure_ns),
        *(known_to(None if one[name] is None else one[name] / len(one["ranks"]), unsure_ns)
          for name in ("wait_ns", "transfer_ns")),
        duration(one["shortest_ns"]), duration(one["longest_ns"]), gigabytes(one["busbw"]), late, issued_in(one),
    )
