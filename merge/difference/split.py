"""Splits steps of a run into parts, modules, operators and collectives, for each step and rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import polars as pl

from distprof.contract.passes import TIME
from distprof.contract.tables import EVALUATION
from distprof.merge.activity.markers import COMMUNICATION
from distprof.merge.difference.samples import Samples, common_cells
from distprof.merge.match.backend_names import communicates
from distprof.merge.program.run_program import RunProgram

PARTS = ("data", "forward", "backward", "optimizer", "exposed", "evaluation", "other")
"""Parts of a step; they add up to it."""
PART_OF = {"data": "data", "forward": "forward", "backward": "backward", "recompute": "backward",
           "optimizer": "optimizer", EVALUATION: EVALUATION}
"""Activity of a rank -> part; others are `other`."""
SIDES = {"forward": "forward", "backward": "backward", "recompute": "backward", EVALUATION: "forward"}
"""Activity of a module -> the side on which its time is shown."""
OF_TIME_PASS = {"data": "before_forward_ns", "forward": "fwd_ns", "backward": "bwd_ns", "optimizer": "optimizer_ns",
                EVALUATION: "evaluation_ns"}
"""Parts that the time pass has, with their columns: backward includes its waits; exposed communication is missing."""
SCHEMA = {"step": pl.Int64(), "rank": pl.Int64(), "kind": pl.String(), "where": pl.String(), "ns": pl.Float64()}


def activities(program: RunProgram) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns what ranks did in traced steps, by kind and module; exposed communication is a kind of its own. On a
    device, only the time of kernels counts.

    Args:
        program: What ranks did.

    Returns:
        Rows of `SCHEMA`; and the counted steps, with `duration_ns`.
    """
    windows = program.windows.filter(pl.col("step").is_in(program.traced), pl.col("rank").is_in(list(program.did)))
    cells = common_cells(windows)
    rows = [row for key, part in cells.partition_by("rank", as_dict=True).items()
            for row in _of_rank(program, int(key[0]), part)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row"), cells.select("step", "rank", "duration_ns")


def _of_rank(program: RunProgram, rank: int, windows: pl.DataFrame) -> Iterator[tuple[Any, ...]]:
    did, known = program.did[rank], program.activities.known
    # kernels take no longer under a profiler, but the host does, and then the device waits for it
    lane = did.lane.within(did.computing) if did.on_device else did.lane.outside(did.blocked)
    windows = windows.sort("start_ns")
    starts, ends = windows["start_ns"].to_list(), windows["end_ns"].to_list()
    if did.on_device:  # it ends a step later than the host
        ends = [*starts[1:], int(did.computing.ends.max(initial=ends[-1]))]
    blocked = did.blocked.within(starts, ends).tolist()
    for step, start, end, exposed in zip(windows["step"].to_list(), starts, ends, blocked, strict=True):
        yield step, rank, "exposed", None, exposed
        for label, ns in lane.split(start, end).items():
            yield step, rank, known[label].kind, known[label].where, ns


def parts_of(rows: pl.DataFrame, cells: pl.DataFrame) -> Samples:
    """Returns the parts of traced steps: `other` is the rest, which may be below 0 if others overlap."""
    named = rows.with_columns(part=pl.col("kind").replace_strict(
        {**PART_OF, "exposed": "exposed"}, default=None)).drop_nulls("part")
    rest = cells.join(named.group_by("step", "rank").agg(pl.col("ns").sum()), on=["step", "rank"], how="left")
    other = rest.select("step", "rank", part=pl.lit("other"),
                        ns=pl.col("duration_ns") - pl.col("ns").fill_null(0.0))
    found = Samples.from_rows(pl.concat([named.select(other.columns), other.cast({"ns": pl.Float64})]), ["part"], cells)
    return found.of({part: [part] for part in PARTS})  # what was not seen took no time


def with_rest(parts: Samples, step_ns: float) -> Samples:
    """Returns parts of a step in which `other` is what is left of the step time, given in ns."""
    values, other = parts.values.copy(), list(parts.items).index("other")
    values[:, :, other] += step_ns - values.sum(axis=2)
    return replace(parts, values=values)


def timed_parts(steps: pl.DataFrame) -> tuple[Samples, pl.DataFrame]:
    """Returns the parts of the steps of the time pass, and these steps."""
    cells = common_cells(steps.filter(pl.col("pass") == TIME))
    parts = {part: column for part, column in OF_TIME_PASS.items() if cells[column].count()}
    known = [pl.col(column).fill_null(0).alias(part) for part, column in parts.items()]
    split = cells.select("step", "rank", "duration_ns", *known)
    split = split.with_columns(other=pl.col("duration_ns") - pl.sum_horizontal(list(parts)))
    rows = split.unpivot(on=[*parts, "other"], index=["step", "rank"], variable_name="part", value_name="ns")
    return Samples.from_rows(rows, ["part"], cells), cells.select("step", "rank", "duration_ns")


def modules_of(rows: pl.DataFrame, cells: pl.DataFrame) -> Samples:
    """Returns times of modules by path (None: backward outside of all modules) and side."""
    named = rows.with_columns(side=pl.col("kind").replace_strict(SIDES, default=None)).drop_nulls("side")
    return Samples.from_rows(named, ["where", "side"], cells)


def operators_of(rows: pl.DataFrame, cells: pl.DataFrame) -> Samples:
    """Returns self times of operators: on a device if there are kernels, else on the host."""
    on_device = int(rows["self_device_ns"].sum()) > 0
    kinds = ("kernel", "memcpy", "memset") if on_device else ("operator",)
    found = rows.filter(pl.col("type").is_in(kinds), pl.col("step").is_not_null())
    side, ns = ("device", "self_device_ns") if on_device else ("host", "self_host_ns")
    return Samples.from_rows(found.select("step", "rank", pl.col("op").cast(pl.String), side=pl.lit(side),
                                          ns=pl.col(ns).cast(pl.Float64)), ["op", "side"], cells)


def is_communication(op: object) -> bool:
    """Returns whether the time of an operator or kernel depends on other ranks and the network."""
    return str(op).startswith(COMMUNICATION) or communicates(str(op))


def collectives_of(rows: pl.DataFrame, cells: pl.DataFrame) -> tuple[Samples, pl.DataFrame]:
    """Returns time in collectives by op and group: until the last rank came (`waiting`), and the rest (`moving`).

    Args:
        rows: `MERGED_COLLECTIVES`.
        cells: Steps and ranks that count.

    Returns:
        The times; and `op`, `group`, `calls` and `size_bytes`, means per rank and step.
    """
    named = with_groups(rows).join(cells.select("step", "rank").unique(), on=["step", "rank"], how="semi")
    times = pl.concat([named.select("step", "rank", "op", "group", side=pl.lit(side),
                                    ns=pl.col(column).fill_null(0).cast(pl.Float64))
                       for side, column in (("waiting", "wait_ns"), ("moving", "transfer_ns"))])
    number = max(len(cells), 1)
    counts = named.group_by("op", "group", maintain_order=True).agg(
        calls=pl.len() / number, size_bytes=pl.col("size_bytes").sum() / number)
    return Samples.from_rows(times, ["op", "group", "side"], cells), counts


def with_groups(rows: pl.DataFrame) -> pl.DataFrame:
    """Names the group of each row independently of its ranks, so that similar groups share a name."""
    name, description = (pl.col(column).cast(pl.String) for column in ("group", "group_description"))
    is_said = description.is_not_null() & ~description.is_in(("", "undefined"))
    return rows.with_columns(pl.col("op").cast(pl.String),
                             group=pl.when(is_said).then(description).otherwise(name).fill_null("-"))
