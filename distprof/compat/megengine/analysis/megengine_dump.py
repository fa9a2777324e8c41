"""Reads the results of MegEngine's `get_profile()`, stored as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from distprof.compat.megengine.analysis.profile import SCHEMA, Profile
from distprof.errors import DataError
from distprof.units import counted

Id = str | int
HINT = "json.dump(function.get_profile(), file) writes one"


class Operator(msgspec.Struct):
    """A node of the graph."""

    name: str
    type: str
    id: Id
    input: list[Id] = msgspec.field(default_factory=list)
    output: list[Id] = msgspec.field(default_factory=list)


class Graph(msgspec.Struct):
    """Operators and variables by id."""

    operator: dict[str, Operator]
    var: dict[str, Any] = msgspec.field(default_factory=dict)


class Lane(msgspec.Struct):
    """Times of an operator on one device or thread, in seconds."""

    start: float
    end: float
    kern: float | None = None


class Footprint(msgspec.Struct):
    """FLOPs and bytes of an operator, and its shapes."""

    computation: float | None = None
    memory: float | None = None
    in_shapes: list[Any] | None = None
    out_shapes: list[Any] | None = None
    in_layouts: list[Any] | None = None


class Times(msgspec.Struct):
    """Times by id of the operator, then by lane, and footprints by id."""

    device: dict[str, dict[str, Lane]] = msgspec.field(default_factory=dict)
    host: dict[str, dict[str, Lane]] = msgspec.field(default_factory=dict)
    opr_footprint: dict[str, Footprint] = msgspec.field(default_factory=dict)


class Dump(msgspec.Struct):
    """Content of the file."""

    graph_exec: Graph
    profiler: Times


def read_dumps(paths: Sequence[Path]) -> Profile:
    """Reads the dumps of the ranks of a job. They do not contain the rank: the first file is taken for rank 0.

    Raises:
        DataError: A file is not such a dump.
    """
    rows, bad = list[dict[str, Any]](), 0
    for rank, path in enumerate(paths):
        found, left_out = _operators(rank, _read(path))
        rows += found
        bad += left_out
    notes = [f"{counted(bad, 'time')} skipped: the end is before the start"] if bad else []
    return Profile(rows=pl.DataFrame(rows, schema=SCHEMA, orient="row"), notes=notes)


def _read(path: Path) -> Dump:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Dump)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DataError(f"{path} is not a MegEngine profile (JSON with graph_exec and profiler): {error}",
                        hint=HINT) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _operators(rank: int, dump: Dump) -> tuple[list[dict[str, Any]], int]:
    found, bad = list[dict[str, Any]](), 0
    times = {"device": dump.profiler.device, "host": dump.profiler.host}
    for key, operator in dump.graph_exec.operator.items():
        footprint = dump.profiler.opr_footprint.get(key, Footprint())
        row = {
            "rank": rank, "name": operator.name, "type": operator.type, "id": str(operator.id),
            "computation": footprint.computation or None, "memory": footprint.memory,
            **{name: _json(getattr(footprint, name)) for name in ("in_shapes", "in_layouts", "out_shapes")},
            "dtypes": [dtype for one in operator.input if (dtype := _dtype(dump.graph_exec.var, one)) is not None]}
        for side, by_id in times.items():
            for end in ("end", "kern"):
                row[f"{side}_{end}"], wrong = _longest(by_id.get(key, {}), end)
                bad += wrong if end == "end" else 0
        found.append(row)
    return found, bad


def _longest(lanes: Mapping[str, Lane], end: str) -> tuple[float | None, int]:
    """Returns the seconds on the lane with the longest time, and the number of lanes that end before they start."""
    each = [value - lane.start for lane in lanes.values() if (value := getattr(lane, end)) is not None]
    good = [seconds for seconds in each if seconds >= 0 and math.isfinite(seconds)]
    return max(good, default=None), len(each) - len(good)


def _json(value: list[Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def _dtype(variables: Mapping[str, Any], key: Id) -> str | None:
    found: Any = variables.get(str(key))
    for name in ("mem_plan", "layout", "dtype"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None
