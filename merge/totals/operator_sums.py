"""Sums operators of all ranks while their tables are read: over modules and shapes, and over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from distprof.contract.tables import OPS
from distprof.merge.run.run_model import Run
from distprof.merge.run.tables import Loaded, empty, pieces
from distprof.merge.totals.first_seen import FirstSeen

FLOPS_OF_PHASE = {"fwd_flops": "forward", "bwd_flops": "backward", "recompute_flops": "recompute"}
MODEL_PHASES = ("forward", "backward")
"""Phases that count as work of the model; recomputation does not."""
KEYS = ("op", "phase", "dtype", "counted", "view")
"""Columns by which totals distinguish operators."""
SUMS = ("calls", "macs", "flops", "recompute_macs", "io_bytes")
_NEEDED = OPS.only("rank", *KEYS, *SUMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSums:
    """What totals need of the operators of all ranks."""

    of_ranks: pl.DataFrame
    """`rank`, `FLOPS_OF_PHASE` and `fwd_macs`: a row for each rank that has operators."""
    model_flops: pl.DataFrame
    """FLOPs of the model per step: `rank`, `dtype` (null if unknown), `convolution`, `flops`."""
    of_ops: pl.DataFrame
    """A row for each combination of `KEYS`, with `SUMS` over all ranks."""
    num_working: int
    """Number of ranks with an operator that is not a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfSome:
    """Sums over operators of some ranks."""

    of_ranks: pl.DataFrame
    model_flops: pl.DataFrame
    num_working: int


def read_operators(run: Run) -> tuple[OperatorSums, Loaded]:
    """Returns the sums; and which ranks have operators, without rows."""
    ranks, problems, adding = list[int](), list[Any](), Adding()
    for piece in pieces(run, _NEEDED, of_a_rank):
        adding.add(piece.rows)
        ranks += piece.ranks
        problems += piece.problems
    return adding.sums(), Loaded(rows=empty(_NEEDED), ranks=ranks, problems=problems)


def operator_sums(ops: pl.DataFrame) -> OperatorSums:
    """Sums rows of `OPS` that are in memory."""
    adding = Adding()
    adding.add(of_a_rank(ops))
    return adding.sums()


def of_a_rank(rows: pl.DataFrame) -> pl.DataFrame:
    """Sums over modules and shapes, which are most of what ranks recorded of their operators."""
    return rows.group_by("rank", *KEYS, maintain_order=True).agg(pl.col(SUMS).sum())


class Adding:
    """Adds ranks, some at once; a handful of numbers is kept of each."""

    def __init__(self) -> None:
        self._parts: list[_OfSome] = []
        self._ops = FirstSeen(KEYS)
        self._sums = np.zeros((0, len(SUMS)))

    def add(self, rows: pl.DataFrame) -> None:
        """Adds operators of some ranks; all rows of a rank must come together."""
        flops = [pl.col("flops").filter(pl.col("phase") == phase).sum().alias(name)
                 for name, phase in FLOPS_OF_PHASE.items()]
        macs = pl.col("macs").filter(pl.col("phase") == "forward").sum().alias("fwd_macs")
        self._parts.append(_OfSome(
            of_ranks=rows.group_by("rank", maintain_order=True).agg(*flops, macs), model_flops=model_flops(rows),
            num_working=rows.filter(~pl.col("view"))["rank"].n_unique()))
        numbers = self._ops.numbers(rows.select(KEYS))
        self._sums = self._ops.grown(self._sums)
        np.add.at(self._sums, numbers, rows.select(SUMS).to_numpy())

    def sums(self) -> OperatorSums:
        """Returns the sums of all that was added."""
        if not self._parts:
            self.add(of_a_rank(empty(_NEEDED)))
        return OperatorSums(
            of_ranks=pl.concat([part.of_ranks for part in self._parts]),
            model_flops=pl.concat([part.model_flops for part in self._parts]),
            of_ops=self._ops.rows.with_columns(pl.Series(name, self._sums[:, at]) for at, name in enumerate(SUMS)),
            num_working=sum(part.num_working for part in self._parts))


def model_flops(ops: pl.DataFrame) -> pl.DataFrame:
    """Returns `OperatorSums.model_flops` for rows of `OPS`, however they are summed."""
    kind = pl.col("op").cast(pl.String).str.contains("conv").alias("convolution")
    flops = pl.col("flops") - 2 * pl.col("recompute_macs")  # fused attention recomputes its scores in backward
    work = ops.filter(pl.col("phase").is_in(MODEL_PHASES) & (pl.col("flops") > 0))
    return work.group_by("rank", "dtype", kind, maintain_order=True).agg(flops.sum().alias("flops"))
