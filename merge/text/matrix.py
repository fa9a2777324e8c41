"""`distprof comms --matrix`: a table of the bytes between ranks; with many ranks, of the largest pairs."""

from __future__ import annotations

import polars as pl

from distprof.merge.cost.matrix import EXACT, matrix_of
from distprof.reporters.page import Page
from distprof.units import UNKNOWN, size, spans

MOST_RANKS = 16
"""Ranks up to which all pairs are shown."""
SHOWN_PAIRS = 20


def show_matrix(between: pl.DataFrame, num_ranks: int, page: Page, what: str) -> None:
    """Prints the table.

    Args:
        between: As `bytes_between` gives it.
        num_ranks: Of the job.
        page: Where to print.
        what: Of which steps it is, in words.
    """
    if between.is_empty():
        page.line("bytes between ranks are unknown: no collective has sizes, groups and peers")
        return
    page.line(f"bytes that ranks send each other, {what}; row: sender, column: receiver" if num_ranks <= MOST_RANKS else
              f"the largest {SHOWN_PAIRS} of the bytes that ranks send each other, {what}")
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
        page.line(f"... {max(len(pairs) - SHOWN_PAIRS, 0)} more of {len(pairs)} pairs: --json has all")
    for line in basis_lines(between):
        page.line(line)


def basis_lines(between: pl.DataFrame) -> list[str]:
    """Which numbers are exact, and which assume how libraries usually do it."""
    found = []
    for basis, ops, num_bytes in between.group_by("basis", maintain_order=True).agg(
            pl.col("op").unique(maintain_order=True), pl.col("num_bytes").sum()).sort("basis").iter_rows():
        how = "known" if basis == EXACT else basis
        found.append(f"{', '.join(ops)}: {how}, {size(num_bytes)} in all")
    return found


def of_steps(steps: list[int]) -> str:
    """`steps 4-8`, `of all that was recorded`."""
    return f"step{'s' if len(steps) > 1 else ''} {spans(steps)} in all" if steps else "of all that was recorded"
