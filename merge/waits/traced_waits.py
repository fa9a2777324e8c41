"""Waits of the host in a timeline: runtime calls, operators and slices; and what torch.compile did, summed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from distprof.arrays import Flags, Integers
from distprof.contract.tables import COMPILATIONS, COMPILE_SLICE_END, WAIT_SLICE, WAITS
from distprof.merge.activity.device.commands import synchronises
from distprof.merge.activity.markers import AUTOGRAD
from distprof.merge.operators.places import PHASES, Places, places_of
from distprof.merge.operators.timeline.grouped_calls import steps_of
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import NUM_HOST, OPERATOR, RUNTIME, RankTimeline
from distprof.merge.run.tables import TYPES

SCHEMA = {column.name: TYPES[column.type] for column in WAITS.columns if column.name not in ("mp_size", "dp_size")}
"""Columns of waits."""
OF_VALUES = {
    "aten::item": "aten::item", "aten::_local_scalar_dense": "aten::item",
    **{name: name for name in ("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
                               "aten::unique_consecutive", "aten::equal", "aten::bincount")}}
"""Operators whose result, or its shape, depends on values of a tensor -> name that is shown."""
OF_COMMUNICATION = (WAIT_SLICE, "_c10d_functional::wait_tensor")
"""Slices in which a thread waits for communication."""
LOADING = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
"""Slice of a data loader with workers."""
COMPILING, COMPILER = "torch.compile", "compiler"
"""Op that is shown for slices of the compiler, and what they wait for."""
_KINDS = ("device", "communication", "data", COMPILER)
"""Values of `waits_for`: device is that of `_RUNTIME` and `_VALUE`, the others are those of the kinds after these."""
_NONE, _RUNTIME, _VALUE, _COMMUNICATION, _DATA, _COMPILER = range(6)
COMPILED = {column.name: TYPES[column.type] for column in COMPILATIONS.columns
            if column.name not in ("mp_size", "dp_size")}
"""Columns of `COMPILATIONS` that are shown."""
EVENTS = ("compile", "recompile", "backward", "graph_break")
"""Kinds of events in `COMPILATIONS`."""
WHAT = ("event", "file", "line", "function", "module_path")
"""Columns by which `grouped_compilations` groups."""
NUMBERS = ("times", "duration_ns", "longest_ns", "backend_ns", "inductor_ns", "fake_ns", "guards_ns", "failed",
           "num_ranks", "slowest_rank", "slowest_ns")
"""Columns of numbers of `grouped_compilations`."""
OF_GUARDS = r"^\d+/\d+: "
"""Prefix of a failed guard: the number of the compilation that it belongs to."""


def traced_waits(rank: int, timeline: RankTimeline, windows: Sequence[tuple[int, int, int]] | None) -> pl.DataFrame:
    """Finds the waits of a rank, without lines of the script.

    Args:
        rank: Number of the rank.
        timeline: Its slices.
        windows: Start, end and number of its steps; None if the trace marks them, or is one step.

    Returns:
        `SCHEMA`. For a rank with a device, waits in runtime calls, each with the operator around it; for a rank without
        one, operators that would wait on a device, except those of optimizers, whose numbers always stay on the host.
    """
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
    places = places_of(timeline, nesting)
    has_device = bool(np.any(timeline.type >= RUNTIME))
    kind = _kinds(timeline, has_device=has_device)
    kind[(kind == _VALUE) & (places.phase == PHASES.index("optimizer"))] = _NONE
    around, outer = _outwards(timeline, nesting, kind)
    step = steps_of(timeline, windows, timeline.start_ns)
    rows = np.flatnonzero((kind != _NONE) & ~around & (step >= 0))
    if not len(rows):
        return pl.DataFrame(schema=SCHEMA)
    return _summed(_frame(timeline, places, rows, kind, outer, step), rank)


def _kinds(timeline: RankTimeline, *, has_device: bool) -> Integers:
    of_name = np.array([_kind(name, has_device=has_device) for name in timeline.names] or [_NONE], np.int64)
    kind = of_name[timeline.name] if len(timeline.name) else np.empty(0, np.int64)
    kind[(timeline.type >= NUM_HOST) | ((kind == _RUNTIME) != (timeline.type == RUNTIME))] = _NONE
    return kind


def _kind(name: str, *, has_device: bool) -> int:
    if synchronises(name):
        return _RUNTIME
    if name == LOADING:
        return _DATA
    if name.endswith(COMPILE_SLICE_END):
        return _COMPILER
    if has_device:
        return _NONE  # streams wait for communication; operators that read values of a device make runtime calls
    return _VALUE if name in OF_VALUES else _COMMUNICATION if name in OF_COMMUNICATION else _NONE


def _outwards(timeline: RankTimeline, nesting: Nesting, kind: Integers) -> tuple[Flags, Integers]:
    """Returns whether each slice is inside a wait, and the row of the outermost operator around it, -1 for none."""
    around, outer = np.zeros(len(kind), bool), np.full(len(kind), -1, np.int64)
    shown = np.array([not name.startswith(AUTOGRAD) for name in timeline.names] or [True])
    operator = (timeline.type == OPERATOR) & (shown[timeline.name] if len(timeline.name) else True)
    for rows, parents in nesting.downwards():
        inside = parents >= 0
        around[rows] = inside & (around[parents] | (kind[parents] != _NONE))
        above = np.where(inside, outer[parents], -1)
        outer[rows] = np.where(above >= 0, above, np.where(inside & operator[parents], parents, -1))
    return around, outer


def _frame(timeline: RankTimeline, places: Places, rows: Integers, kind: Integers, outer: Integers,
           step: Integers) -> pl.DataFrame:
    names, paths = [OF_VALUES.get(name, name) for name in timeline.names], places.paths
    duration, blocking = timeline.duration_ns[rows], kind[rows] != _VALUE
    return pl.DataFrame({
        "step": step[rows], "blocking": blocking, "duration_ns": np.where(blocking, duration, 0),
        "op": [_op(names[one]) for one in timeline.name[rows]],
        "waits_for": [_KINDS[max(one - _VALUE, 0)] for one in kind[rows]],
        "device": [_device(one, names[name]) for one, name in zip(kind[rows], timeline.name[rows], strict=True)],
        "library_call": [None if one < 0 else timeline.names[timeline.name[one]] for one in outer[rows]],
        "module_path": [None if one < 0 else paths[one] for one in places.module[rows]],
        "phase": [PHASES[one] for one in places.phase[rows]]},
        schema_overrides=dict.fromkeys(("device", "library_call", "module_path", "phase"), pl.String()))


def _device(kind: int, call: str) -> str | None:
    if kind == _RUNTIME:
        return "xpu" if call.startswith(("ur", "pi", "ze")) else "cuda"
    return "cpu" if kind == _VALUE else None


def _op(name: str) -> str:
    return COMPILING if name.endswith(COMPILE_SLICE_END) else "DataLoader.__next__" if name == LOADING else name


def _summed(rows: pl.DataFrame, rank: int) -> pl.DataFrame:
    keys = [name for name in rows.columns if name != "duration_ns"]
    found = rows.group_by(keys, maintain_order=True).agg(
        calls=pl.len(), blocked_ns=pl.col("duration_ns").sum(), longest_ns=pl.col("duration_ns").max())
    return found.select(
        (pl.lit(rank) if name == "rank" else pl.col(name) if name in found.columns else pl.lit(None)).cast(kind)
        .alias(name) for name, kind in SCHEMA.items())


def empty_compilations() -> pl.DataFrame:
    """Returns `COMPILED` without rows."""
    return pl.DataFrame(schema=COMPILED)


def compiling_waits(compilations: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Returns compilations in these steps as waits of the lines that called what was compiled.

    Args:
        compilations: `COMPILED`.
        steps: `rank` and `step`.

    Returns:
        A frame like that of the sync pass.
    """
    mine = compilations.filter(pl.col("duration_ns").is_not_null()).join(steps, on=("rank", "step"), how="semi")
    given = {"op": pl.lit(COMPILING), "waits_for": pl.lit(COMPILER), "file": pl.col("caller_file"),
             "line": pl.col("caller_line"), "function": pl.col("caller_function"), "thread": pl.lit("steps"),
             "phase": pl.when(pl.col("event") == "backward").then(pl.lit("backward")), "blocking": pl.lit(value=True),
             "calls": pl.lit(1), "blocked_ns": pl.col("duration_ns"), "longest_ns": pl.col("duration_ns")}
    return mine.select(
        given.get(name, pl.col(name) if name in mine.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in SCHEMA.items())


def grouped_compilations(compilations: pl.DataFrame) -> pl.DataFrame:
    """Sums compilations and graph breaks over ranks and steps; longest first.

    Returns:
        `WHAT`, `NUMBERS`, `steps` (known ones), and `reasons`, most frequent first, without the prefix of torch that
        numbers the compilation.
    """
    duration = pl.col("duration_ns")
    rows = compilations.with_columns(reason=pl.col("reason").str.replace(OF_GUARDS, ""))
    found = rows.group_by(WHAT, maintain_order=True).agg(
        times=pl.len().cast(pl.Int64), duration_ns=duration.sum(), longest_ns=duration.max(),
        **{name: _sum(name) for name in ("backend_ns", "inductor_ns", "fake_ns", "guards_ns")},
        failed=pl.col("error").is_not_null().sum().cast(pl.Int64), num_ranks=pl.col("rank").n_unique().cast(pl.Int64),
        steps=pl.col("step").drop_nulls().unique().sort(),
        reasons=pl.col("reason").drop_nulls().value_counts(sort=True).struct.field("reason"))
    each = rows.group_by([*WHAT, "rank"]).agg(duration.sum()).sort("rank")
    slowest = each.group_by(WHAT).agg(
        slowest_rank=pl.when((pl.len() > 1) & (duration.max() > 0)).then(pl.col("rank").get(duration.arg_max())),
        slowest_ns=pl.when((pl.len() > 1) & (duration.max() > 0)).then(duration.max()))
    return found.join(slowest, on=WHAT, how="left", nulls_equal=True, maintain_order="left").sort(
        "duration_ns", "times", descending=True, maintain_order=True).select(*WHAT, *NUMBERS, "steps", "reasons")


def compilation_totals(compilations: pl.DataFrame) -> dict[str, int]:
    """Returns how often each of `EVENTS` happened, the number of failures, and the total time."""
    counts = dict(compilations["event"].value_counts().iter_rows())
    return {**{event: int(counts.get(event, 0)) for event in EVENTS},
            "failed": int(compilations["error"].is_not_null().sum()),
            "duration_ns": int(compilations["duration_ns"].sum())}


def _sum(name: str) -> pl.Expr:
    """Returns the sum of a column; null if all values are null."""
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum())
