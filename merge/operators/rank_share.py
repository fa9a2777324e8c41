"""What a rank contributes to the operators of its run, made where it is read: all rows of a large run take GBs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from distprof.contract.problems import TraceDamaged
from distprof.contract.tables import OPS
from distprof.merge.operators.counted_work import with_counts, with_limits
from distprof.merge.operators.selection import Selection, selected
from distprof.merge.operators.shapes import ShapeCoverage
from distprof.merge.operators.sums import AddedUp, added_up
from distprof.merge.operators.timeline.graph_replays import NO_REPLAYS, Replays
from distprof.merge.operators.timeline.grouped_calls import COSTS, MEMORY
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, TYPES
from distprof.merge.run.run_model import Rank
from distprof.merge.run.tables import rank_table

WORDS = ("op", "type", "dtypes", "module_path", "class_name", "phase", "stream", "launched_by")
KEYS = {**dict.fromkeys(WORDS, pl.Categorical()), "shapes": pl.String(), "stack": pl.String(), "step": pl.Int64()}
"""What the calls of a row share. `stream`: for slices of a device; `launched_by`: the operator that launched a slice of
a device, or the launch of its graph; `stack`: the Python functions around the calls, innermost first, null if not
requested. Few different words occur in many rows, so they are categories, which are compared and grouped as numbers.
Shapes and stacks may differ in each row."""
SUMS = ("calls", "duration_ns", "host_ns", "self_host_ns", "device_ns", "self_device_ns", "squared_ns")
SCHEMA = {"rank": pl.Int64(), **KEYS, **dict.fromkeys(SUMS, pl.Int64()), "squared_ns": pl.Float64(),
          "min_ns": pl.Int64(), "max_ns": pl.Int64(), **dict.fromkeys((*MEMORY, *COSTS), pl.Int64())}
Rates = tuple[float | None, float | None]
Kept = pl.DataFrame | AddedUp
"""`rank_operators` with `COSTS`, `compute_ns` and `memory_ns`, or the requested sums of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOperators:
    """What was found in a timeline."""

    rows: pl.DataFrame
    """`SCHEMA`: `calls`; times in ns, summed over calls, on the host and on a device, with and without what lies
    inside; `squared_ns`, `min_ns` and `max_ns` of the calls' durations; memory, if the timeline has it; FLOPs and
    bytes, if they follow from shapes. An operator that calls itself with the same tensors counts as one call."""
    by_shapes: ShapeCoverage | None
    """None if there are no shapes, or they were not requested."""
    replays: Replays = NO_REPLAYS


def as_texts(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows with texts in place of categories."""
    return rows.with_columns(pl.col(pl.Categorical).cast(pl.String))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The part of all rows that a command shows."""

    selection: Selection
    keys: Sequence[str]
    """Columns by which rows are grouped, besides rank and step."""

    def of(self, rows: pl.DataFrame) -> AddedUp:
        """Selects rows and sums them."""
        return added_up(selected(rows, self.selection), self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """What is kept of a rank with a timeline, besides its rows."""

    rank: int
    by_shapes: ShapeCoverage | None
    num_bad: int
    """Number of slices that were left out."""
    flops: float
    """FLOPs per step of calls that the count pass saw as well; `calls` likewise."""
    calls: float
    num_rows: int
    """Number of rows before any selection; `steps`, `phases` and `has_stacks` likewise."""
    steps: Sequence[int]
    phases: Sequence[str]
    has_stacks: bool
    num_stepless: int
    """Commands of its devices that are in no step, although there are steps: the timeline has no launch of them, or one
    outside of all steps. They are left out."""
    stepless_ns: int
    replays: Replays = NO_REPLAYS
    problems: Sequence[TraceDamaged] = ()
    """What is lost of its timeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMaker:
    """Makes the share of a rank; can be pickled."""

    rank: Rank
    is_counted: bool
    """Whether the rank has rows of `OPS`. They are read when needed: those of all ranks take gigabytes."""
    windows: Sequence[tuple[int, int, int]] | None
    """Start, end and number of the steps in its timeline; None if its own marks show them."""
    rates: Rates
    """Peak FLOP/s and bytes/s of its device, in place of the published ones."""
    asked: Asked | None
    """What to keep of the rows; None: all of them."""

    def of(self, found: RankOperators, num_bad: int) -> tuple[RankShare, Kept]:
        """Makes the share, and what is kept, from the operators that were read."""
        rows, number, coverage = found.rows, self.rank.number, None
        ops = rank_table(self.rank, OPS) if self.is_counted else None
        if ops is not None:
            rows, coverage = with_counts(rows, ops, pl.DataFrame(
                {"rank": [number], "steps": [len(self.windows or ())]}))
        rows, stepless = _in_steps(rows)
        rows = with_limits(rows, [self.rank], self.rates)
        steps, phases = (rows[name].drop_nulls().unique().sort().to_list() for name in ("step", "phase"))
        share = RankShare(
            rank=number, by_shapes=found.by_shapes, num_bad=num_bad, flops=0.0 if coverage is None else coverage.flops,
            calls=0.0 if coverage is None else coverage.calls,
            num_rows=len(rows), steps=steps, phases=phases, has_stacks=not rows["stack"].is_null().all(),
            num_stepless=int(stepless["calls"].sum()), stepless_ns=int(stepless["self_device_ns"].sum()),
            replays=found.replays)
        return share, rows if self.asked is None else self.asked.of(rows)


def _in_steps(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Separates the rows from those of devices that are in no step, if there are steps."""
    if rows["step"].is_null().all():
        return rows, rows.clear()
    stepless = pl.col("type").cast(pl.String).is_in(TYPES[NUM_HOST:]) & pl.col("step").is_null()
    return rows.filter(~stepless), rows.filter(stepless)
