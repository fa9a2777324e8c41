"""Operators of a run that distprof recorded, or of foreign traces, as in a MegEngine profile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from distprof.compat.megengine.analysis.profile import SCHEMA, Profile, dtype_of, type_of
from distprof.contract.tables import OPS, STEPS
from distprof.errors import DataError
from distprof.merge.operators.counted_work import Coverage, with_counts
from distprof.merge.operators.rank_share import RankOperators, as_texts
from distprof.merge.operators.read_operators import rank_operators
from distprof.merge.operators.selection import Selection, selected
from distprof.merge.operators.shapes import WANTED, ShapeCoverage, tensors_of
from distprof.merge.operators.timeline.grouped_calls import slice_costs
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import (
    NUM_HOST,
    OPERATOR,
    TYPES,
    RankTimeline,
    Wanted,
    read_timeline,
)
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import read_table
from distprof.merge.run.timelines import steps_of_timeline, timeline_pass, with_timelines
from distprof.units import counted, percent, spans

KEY = ("rank", "op", "type", "module_path", "phase", "shapes", "dtypes")
"""Calls in a step that share these columns are summed."""
KERNELS = TYPES[NUM_HOST:]
Calls = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsAndSteps:
    """Tables that the ranks of a run recorded in addition to timelines."""

    ops: pl.DataFrame
    steps: pl.DataFrame


def read_profile(paths: Sequence[Path]) -> Profile:
    """Reads a run.

    Raises:
        DataError: It cannot be read, or no rank has a timeline.
    """
    run = with_timelines(open_run(*paths))
    tables = None if run.kind == "traces" else OpsAndSteps(
        ops=read_table(run, OPS).rows, steps=read_table(run, STEPS).rows)
    by_shapes = tables is None or tables.ops.is_empty()
    found, bad = list[RankOperators](), 0
    for rank in run.ranks:
        if rank.trace is not None:
            timeline = read_timeline(rank, wanted=Wanted(texts=WANTED if by_shapes else ()))
            bad += timeline.num_bad
            whole = _whole_by_shapes(timeline) if by_shapes else _whole_operators(timeline, _counted(tables, rank))
            found.append(rank_operators(rank.number, whole, _windows(tables, rank), by_shapes=by_shapes))
    if not found:
        raise DataError(f"no timeline in {run.path}",
                        hint="record one with --steps trace=6" if tables is not None else None)
    rows, coverage = pl.concat([as_texts(one.rows) for one in found]), None
    if tables is not None and not by_shapes:
        rows, coverage = _with_counts(rows, tables, run.ranks)
    told = [one.by_shapes for one in found if one.by_shapes is not None]
    if rows["step"].is_not_null().any():
        rows = rows.filter(pl.col("step").is_not_null())
    notes = [*_notes(run, rows, coverage or (ShapeCoverage.of(told) if told else None), bad)]
    return Profile(rows=_as_operators(selected(rows, Selection())), notes=notes)


def _counted(tables: OpsAndSteps | None, rank: Rank) -> Calls:
    """Returns the operators, with the shapes of their tensors, that the count pass saw on a rank."""
    if tables is None:
        return frozenset()
    ops = tables.ops.filter(pl.col("rank") == rank.number).select("op", "shapes").unique()
    return frozenset((op, tensors_of(shapes or "[]")) for op, shapes in ops.iter_rows())


def _whole_operators(timeline: RankTimeline, known: Calls) -> RankTimeline:
    """Removes operators inside a counted one: they implement it, and its time includes theirs."""
    if not known:
        return timeline
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
    tensors = [*map(tensors_of, timeline.texts), "[]"]
    calls, number = np.unique(np.stack((timeline.name, timeline.shapes)), axis=1, return_inverse=True)
    is_known = np.array([(timeline.names[name], tensors[shapes]) in known for name, shapes in calls.T.tolist()], bool)
    is_operator = timeline.type == OPERATOR
    is_counted = is_known[number.ravel()] & is_operator
    inside = np.zeros(len(timeline.name), bool)
    for rows, parents in nesting.downwards():
        inside[rows] = (parents >= 0) & (inside[parents] | is_counted[parents])
    return timeline.where(~(inside & is_operator))


def _whole_by_shapes(timeline: RankTimeline) -> RankTimeline:
    """Removes operators inside one whose FLOPs are known from its shapes."""
    costs = slice_costs(timeline, Nesting(timeline.thread, timeline.start_ns, timeline.end_ns,
                                          held=timeline.type < NUM_HOST))
    if costs is None:
        return timeline
    return timeline.where((timeline.type != OPERATOR) | ~costs.is_known | (costs.flops >= 0))


def _windows(tables: OpsAndSteps | None, rank: Rank) -> list[tuple[int, int, int]] | None:
    if tables is None:
        return None
    return list(steps_of_timeline(tables.steps, rank).select("start_ns", "end_ns", "step").iter_rows())


def _with_counts(rows: pl.DataFrame, tables: OpsAndSteps, ranks: Sequence[Rank]) -> (
        tuple[pl.DataFrame, Coverage | None]):
    passes = pl.DataFrame({"rank": [rank.number for rank in ranks], "pass": [timeline_pass(rank) for rank in ranks]},
                          schema={"rank": pl.Int64, "pass": pl.String})
    return with_counts(rows, tables.ops, tables.steps.join(passes, on=["rank", "pass"]).group_by("rank").agg(
        steps=pl.len()))


def _as_operators(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns rows as in `SCHEMA`: one for all calls of a step that share `KEY`, with the mean over steps."""
    on_device = rows.group_by("rank").agg(busy=pl.col("self_device_ns").sum() > 0, steps=pl.col("step").n_unique())
    each = rows.group_by(KEY, maintain_order=True).agg(
        pl.col("self_device_ns", "self_host_ns").sum(),
        **{name: pl.when(pl.col(name).is_not_null().all()).then(pl.col(name).sum()) for name in ("flops", "bytes")},
    ).join(on_device, on="rank", maintain_order="left").with_columns(number=pl.int_range(pl.len()).over("rank"))
    steps = pl.col("steps")
    device = pl.when("busy").then("self_device_ns").otherwise("self_host_ns") / steps / 1e9
    host = pl.when(pl.col("type").is_in(KERNELS)).then(None).otherwise(pl.col("self_host_ns") / steps / 1e9)
    shapes = {text: _shapes(text) for text in each["shapes"].unique() if text is not None}
    dtypes = {text: _dtypes(text) for text in each["dtypes"].unique() if text is not None}
    return each.select(
        rank="rank", name=_names(), type=pl.Series([_type(*one) for one in each.select("op", "type").iter_rows()],
                                                   dtype=pl.String),
        operator="op", id=pl.col("number").cast(pl.String), device_end=device, device_kern=pl.lit(None, pl.Float64),
        host_end=host, host_kern=pl.lit(None, pl.Float64),
        computation=pl.when(pl.col("flops") > 0).then(pl.col("flops") / steps), memory=pl.col("bytes") / steps,
        in_shapes=pl.Series([shapes.get(text) for text in each["shapes"]], dtype=pl.String),
        in_layouts=pl.lit(None, pl.String), out_shapes=pl.lit(None, pl.String),
        dtypes=pl.Series([dtypes.get(text, []) for text in each["dtypes"]], dtype=pl.List(pl.String())),
    ).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


def _names() -> pl.Expr:
    """Returns names like `layers.0/aten::mm (backward)`."""
    module, phase = pl.col("module_path"), pl.col("phase")
    where = pl.when(module.is_null() | (module == "")).then(pl.lit("")).otherwise(module + "/")
    when = pl.when(phase.is_null() | (phase == "forward")).then(pl.lit("")).otherwise(" (" + phase + ")")
    return where + pl.col("op") + when


def _type(op: str, kind: str) -> str:
    return "Copy" if kind == "memcpy" else type_of(op)


def _shapes(text: str) -> str | None:
    try:
        found: Any = json.loads(tensors_of(text))
    except ValueError:
        return None
    return json.dumps(found)


def _dtypes(text: str) -> list[str]:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return []
    return [dtype for one in found if isinstance(one, str) and (dtype := dtype_of(one)) is not None]


def _notes(run: Run, rows: pl.DataFrame, coverage: Coverage | ShapeCoverage | None, bad: int) -> Iterator[str]:
    steps = rows["step"].drop_nulls().unique().sort().to_list()
    of_steps = f", mean of {counted(len(steps), 'step')} ({spans(steps)})" if len(steps) > 1 else ""
    yield f"each operator stands for all calls in a step with the same module, phase and shapes{of_steps}"
    busy = rows.group_by("rank").agg(pl.col("self_device_ns").sum() > 0)["self_device_ns"]
    if not busy.any():
        yield "nothing ran on a separate device: device times are host times"
    if coverage is None:
        yield "computation and memory are unknown: there is no count pass, and the trace has no shapes"
    elif isinstance(coverage, ShapeCoverage):
        told = "" if coverage.ratio is None else f", which give FLOPs for {percent(coverage.ratio)} of the time"
        yield f"computation and memory come from the shapes in the trace{told}"
    elif coverage.ratio is not None:
        yield ("computation and memory come from the count pass; these operators cover "
               f"{percent(coverage.ratio)} of its FLOPs")
    if bad:
        yield f"{counted(bad, 'slice')} without a usable duration skipped"
    missing = [rank.number for rank in run.ranks if rank.trace is None]
    if missing:
        yield f"no timeline for rank {spans(missing)}"
