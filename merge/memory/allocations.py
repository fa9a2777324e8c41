"""Allocations of a rank: what made each one, how long it lived, and what it holds.

An allocation belongs to what ran on its thread at that time: the innermost slice, and the operator called by the
script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.arrays import Array, Flags, Integers
from distprof.merge.activity.markers import AUTOGRAD, COMMUNICATION, MODULE
from distprof.merge.operators.places import PHASES, Places, places_of
from distprof.merge.operators.shapes import strict
from distprof.merge.operators.timeline.memory_changes import innermost
from distprof.merge.operators.timeline.memory_events import MemoryEvents
from distprof.merge.operators.timeline.nesting import Nesting
from distprof.merge.operators.timeline.rank_timeline import ANNOTATION, NUM_HOST, OPERATOR, RankTimeline

BUFFERS = (*COMMUNICATION, "FSDP::all_gather", "FSDP::post_backward_reduce")
"""Prefixes of the names of slices in which buffers of collectives are allocated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """The slices around each slice, by number; -1 for none."""

    operator: Integers
    """The outermost operator, not counting functions of the autograd engine."""
    model: Integers
    """The outermost module call."""
    communicates: Flags
    """True inside a collective."""


def outer_of(timeline: RankTimeline, nesting: Nesting) -> Outer:
    """Finds the slices around each slice, from outer to inner ones."""
    size = len(timeline.name)
    operator, model, communicates = np.full(size, -1), np.full(size, -1), np.zeros(size, bool)
    engine, module, talks = (np.array([*map(test, timeline.names), False], bool)[timeline.name]
                             for test in (_is_engine, _is_module, _is_communication))
    for rows, parents in nesting.downwards():
        known = parents >= 0
        operator[rows] = np.where(known, operator[parents], -1)
        model[rows] = np.where(known, model[parents], -1)
        communicates[rows] = (known & communicates[parents]) | talks[rows]
        begins = (timeline.type[rows] == OPERATOR) & ~engine[rows] & (operator[rows] < 0)
        operator[rows] = np.where(begins, rows, operator[rows])
        enters = (timeline.type[rows] == ANNOTATION) & module[rows] & (model[rows] < 0)
        model[rows] = np.where(enters, rows, model[rows])
    return Outer(operator=operator, model=model, communicates=communicates)


def place_at(places: Places, row: Integers) -> tuple[Integers, Integers]:
    """Returns the numbers of the phase and of the module of slices; 0 and -1 if there is none."""
    if not len(places.phase):
        return np.zeros(len(row), np.int64), np.full(len(row), -1)
    return np.where(row >= 0, places.phase[row], 0), np.where(row >= 0, places.module[row], -1)


def _is_engine(name: str) -> bool:
    return name.startswith(AUTOGRAD)


def _is_module(name: str) -> bool:
    return MODULE.fullmatch(name) is not None


def _is_communication(name: str) -> bool:
    return name.startswith(BUFFERS)


BACKWARD = "backward"
SCHEMA = {
    "rank": pl.Int64(), "device": pl.String(), "address": pl.Int64(), "size_bytes": pl.Int64(),
    "made_ns": pl.Int64(), "freed_ns": pl.Int64(), "first": pl.Int64(), "last": pl.Int64(), "op": pl.String(),
    "shapes": pl.String(), "module_path": pl.String(), "class_name": pl.String(), "phase": pl.String(),
    "category": pl.String(), "name": pl.String(), "shape": pl.String(), "dtype": pl.String(),
    "last_used_ns": pl.Int64(), "used_by": pl.String(), "unused_ns": pl.Int64()}
"""One row per allocation. `first` and `last` are the numbers of the device's events at which it began and ended; `last`
is null if it was still alive. `unused_ns` is the time from its last use to its release; null if either is unknown."""
USED = {"device": pl.String(), "address": pl.Int64(), "made_ns": pl.Int64(), "last_used_ns": pl.Int64(),
        "used_by": pl.String()}
"""Columns of uses.parquet that are read."""
EXACT_NS = 1000
"""Times of a trace and of the profiler's own events differ by less than this."""
HELD = {"time_ns": pl.Int64(), "device": pl.String(), "address": pl.Int64(), "category": pl.String(),
        "module_path": pl.String(), "name": pl.String(), "shape": pl.String(), "dtype": pl.String()}
"""Columns of tensors.parquet that are read."""
ORDER = ("parameter", "buffer", "optimizer_state", "gradient", "input")
"""If a storage was observed as several of these, the first one counts."""


def allocations_of(rank: int, timeline: RankTimeline, events: MemoryEvents, held: pl.DataFrame,
                   uses: pl.DataFrame, *, whole: bool = True) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Finds the allocations of a rank.

    Args:
        rank: Number of the rank.
        timeline: Its slices.
        events: Memory events found in the same scan.
        held: Tensors that the rank was observed to hold, `HELD`; empty if not observed.
        uses: Last uses of allocations, `USED`; empty if not observed.
        whole: False if the recording ended within a step: what was alive then may be anything.

    Returns:
        `SCHEMA`, and the events with `number`, which starts at 0 for each device.
    """
    rows = events.frame(timeline.base_ns).with_columns(
        number=pl.int_range(pl.len()).over("device"), sign=pl.col("bytes") > 0)
    made = _paired(rows)
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=timeline.type < NUM_HOST)
    found = _with_uses(_with_category(_with_origin(made, timeline, nesting), held, whole=whole), uses)
    return found.select((pl.lit(rank) if name == "rank" else pl.col(name)).cast(kind).alias(name)
                        for name, kind in SCHEMA.items()), rows


def _paired(rows: pl.DataFrame) -> pl.DataFrame:
    """Pairs each allocation with the next event at its address: its free, or another allocation if the free was missed.
    """
    following = {name: pl.col(name).shift(-1).over("device", "address") for name in
                 ("sign", "time_ns", "thread", "number")}
    freed = ~following["sign"]
    return rows.with_columns(
        freed_ns=pl.when(freed).then(following["time_ns"]), freed_thread=pl.when(freed).then(following["thread"]),
        last=following["number"]).filter("sign").select(
        "device", "address", "thread", "freed_ns", "freed_thread", "last", size_bytes="bytes", made_ns="time_ns",
        first="number")


def _with_origin(made: pl.DataFrame, timeline: RankTimeline, nesting: Nesting) -> pl.DataFrame:
    places, outer = places_of(timeline, nesting), outer_of(timeline, nesting)
    here = innermost(timeline, nesting, made["thread"].to_numpy(), made["made_ns"].to_numpy())
    there = innermost(timeline, nesting, made["freed_thread"].fill_null(-1).to_numpy(),
                      made["freed_ns"].fill_null(0).to_numpy())
    (phase, module), (end_phase, _) = place_at(places, here), place_at(places, there)
    operator, model = _at(outer.operator, here), _at(outer.model, here)
    return made.with_columns(
        _words("op", timeline.names, _at(timeline.name, operator)),
        _words("shapes", [strict(text) for text in timeline.texts], _at(timeline.shapes, operator)),
        _words("module_path", places.paths, module), _words("class_name", places.classes, module),
        _words("phase", PHASES, phase), _words("end_phase", PHASES, end_phase),
        pl.Series("call_end_ns", _at(timeline.end_ns, model)),
        pl.Series("communicates", _at(outer.communicates, here) > 0))


def _with_uses(made: pl.DataFrame, uses: pl.DataFrame) -> pl.DataFrame:
    """Adds when each was last used. Uses that are not operators, such as a copy to another process, are unknown."""
    joined = made.sort("made_ns", maintain_order=True).join_asof(
        uses.select(*USED).sort("made_ns"), on="made_ns", by=["device", "address"], strategy="nearest",
        tolerance=EXACT_NS, check_sortedness=False).sort("row")  # the original order
    last = pl.min_horizontal("last_used_ns", "freed_ns")
    return joined.with_columns(last_used_ns=pl.when(pl.col("last_used_ns").is_not_null()).then(last)).with_columns(
        unused_ns=pl.col("freed_ns") - pl.col("last_used_ns"))


def _at(values: Array, rows: Array) -> Array:
    return np.where(rows >= 0, values[rows], -1) if len(values) else np.full(len(rows), -1)


def _words(name: str, known: Sequence[str | None], numbers: Array) -> pl.Series:
    return pl.Series(name, [known[number] if number >= 0 else None for number in numbers.tolist()], pl.String)


def _with_category(made: pl.DataFrame, held: pl.DataFrame, *, whole: bool) -> pl.DataFrame:
    """Adds categories: observed ones, else those that follow from when an allocation was made and freed."""
    backward, later = pl.col("end_phase") == BACKWARD, pl.col("freed_ns") > pl.col("call_end_ns")
    forward = pl.col("phase").is_in(["forward", "recompute"]) & (pl.col("call_end_ns") >= 0)
    kept = (forward & ((pl.col("freed_ns").is_null() & whole) | later)) | (
        backward & (pl.col("phase").fill_null("") != BACKWARD))
    return _seen(made, held).with_columns(category=pl.coalesce(
        "category",
        pl.when("communicates").then(pl.lit("communication")).when(kept).then(pl.lit("activation"))
        .when(pl.col("freed_ns").is_not_null() & pl.col("phase").eq_missing(pl.col("end_phase")))
        .then(pl.lit("temporary"))))


def _seen(made: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """Adds category, name, shape and dtype if a tensor was observed at the address of a live allocation."""
    made = made.with_row_index("row")
    order = {name: number for number, name in enumerate(ORDER)}
    both = made.select("row", "device", "address", "made_ns", "freed_ns").join(
        held.select(*HELD).rename({"module_path": "held_path"}), on=["device", "address"])
    found = both.filter(pl.col("time_ns") >= pl.col("made_ns"), pl.col("freed_ns").is_null()
                        | (pl.col("time_ns") <= pl.col("freed_ns"))).sort(
        pl.col("category").replace_strict(order, default=len(ORDER)), "time_ns").unique("row", keep="first")
    columns = ("category", "name", "shape", "dtype", "held_path")
    joined = made.join(found.select("row", *columns), on="row", how="left", maintain_order="left")
    return joined.with_columns(module_path=pl.coalesce("held_path", "module_path"))
