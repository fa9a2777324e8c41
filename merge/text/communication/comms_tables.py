"""Tables of `distprof comms`: the collectives that took longest (--slowest), the bytes between ranks (--matrix)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.merge.clock.model import Clock
from distprof.merge.cost.choice import group_label
from distprof.merge.cost.matrix import EXACT, matrix_of
from distprof.merge.text.communication.timeline import gigabytes, issued_in
from distprof.merge.text.phrases import known_to
from distprof.reporters.page import Page
from distprof.units import UNKNOWN, duration, numbered, size

MOST_RANKS = 16
"""Ranks up to which the matrix shows all pairs."""
SHOWN_PAIRS = 20


def list_slowest(collectives: pl.DataFrame, number: int, clock: Clock, page: Page) -> None:
    """Prints those in which a rank was longest, waiting included; the longest first.

    Args:
        collectives: As `per_collective` gives them.
        number: How many.
        clock: Of the run.
        page: Where to print.
    """
    if collectives.is_empty():
        page.line("no collective was recorded")
        return
    slowest = collectives.sort("longest_ns", "collective", descending=[True, False], nulls_last=True).head(number)
    page.table(
        ("step", "op", "group", "#", "ranks", "bytes", "dtype", "spread", "wait", "transfer", "shortest", "longest",
         "busbw GB/s", "late rank", "issued in"),
        [_row(one, clock) for one in slowest.iter_rows(named=True)], left=3)
    if len(collectives) > number:
        page.line(f"... {len(collectives) - number} more of {len(collectives)}: --slowest {len(collectives)}")
    page.line("wait and transfer: mean over ranks; shortest and longest: time of a rank from arrival to end, "
              "including waiting")


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


def show_matrix(between: pl.DataFrame, num_ranks: int, steps: Sequence[int], page: Page) -> None:
    """Prints the table.

    Args:
        between: As `bytes_between` gives it.
        num_ranks: Of the job.
        steps: Which are in it; none where all that was recorded is.
        page: Where to print.
    """
    if between.is_empty():
        page.line("bytes between ranks are unknown: no collective has sizes, groups and peers")
        return
    what = f"{numbered('step', steps)} in total" if steps else "over the whole recording"
    page.line(f"bytes that ranks send to each other, {what}; row: sender, column: receiver"
              if num_ranks <= MOST_RANKS else
              f"the {SHOWN_PAIRS} largest of the bytes that ranks send to each other, {what}")
    page.line()
    if num_ranks <= MOST_RANKS:
        matrix = matrix_of(between, num_ranks)
        page.table(("from \\ to", *map(str, range(num_ranks)), "all"), [
            (f"rank {rank}", *(size(value) if value else UNKNOWN for value in row.tolist()), size(float(row.sum())))
            for rank, row in enumerate(matrix)])
    else:
        pairs = between.group_by("source", "target").agg(
            pl.col("num_bytes").sum(), pl.col("num_ops").sum(), pl.col("op").unique(maintain_order=True)).sort(
            "num_bytes", "source", "target", descending=[True, False, False])
        page.table(("from", "to", "bytes", "ops", "of"), [
            (f"rank {source}", f"rank {target}", size(num_bytes), str(num_ops), ", ".join(ops))
            for source, target, num_bytes, num_ops, ops in pairs.head(SHOWN_PAIRS).iter_rows()], left=2)
        page.line(f"... {max(len(pairs) - SHOWN_PAIRS, 0)} more of {len(pairs)} pairs: --json lists all")
    # some numbers are exact, others assume how libraries usually do it
    for basis, ops, num_bytes in between.group_by("basis", maintain_order=True).agg(
            pl.col("op").unique(maintain_order=True), pl.col("num_bytes").sum()).sort("basis").iter_rows():
        page.line(f"{', '.join(ops)}: {'known' if basis == EXACT else basis}, {size(num_bytes)} in total")
