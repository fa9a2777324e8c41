"""Tables of a rank reduced to what a summary has room for: steps, modules that matter, operators, parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distprof.contract.rank_summary import (
    MODULE_COLUMNS,
    MOST_MODULES,
    MOST_OPS,
    MOST_SHARDS,
    MOST_STEPS,
    OP_COLUMNS,
    STEP_COLUMNS,
    TOP_MODULES,
    TOP_UNCOUNTED,
    PackedTable,
    ParametersDigest,
)
from distprof.summaries.packing import Cut, hash_of, integers, of_column, packed, text_numbers

OPERATORS, CONVOLUTIONS, OTHERS = "operators", "convolutions", "other operators"
"""Names of reduced rows: what is counted, of it convolutions, and small ones that are not."""
_OP_KEYS = ("phase", "dtype", "op", "counted", "view")
_OP_SUMS = tuple(column.name for column in OP_COLUMNS if column.type == "float64")


def reduced_steps(steps: Any, cut: Cut) -> PackedTable:
    """The last steps."""
    if steps.num_rows > MOST_STEPS:
        cut["steps"] += steps.num_rows - MOST_STEPS
        steps = steps.slice(steps.num_rows - MOST_STEPS)
    return packed(steps, STEP_COLUMNS, cut)


def reduced_modules(modules: Any, cut: Cut) -> PackedTable:
    """Top modules by time and by FLOPs, and as many of those near the root as fit, in the order of the table."""
    if modules.num_rows > MOST_MODULES:
        cut["modules"] += modules.num_rows - MOST_MODULES
        modules = modules.take(pa.array(np.sort(_modules_that_matter(modules))))
    return packed(modules, MODULE_COLUMNS, cut)


def _modules_that_matter(modules: Any) -> Any:
    times, flops = (sum(of_column(modules, f"{part}_{what}").cast(pa.float64()).fill_null(0).to_numpy(
        zero_copy_only=False) for part in parts) for what, parts in (
            ("time_ns", ("fwd", "bwd", "recompute")), ("flops", ("fwd", "bwd", "recompute"))))
    depth = integers(modules, "depth")
    near = np.argsort(depth, kind="stable")
    first = [np.argsort(-np.asarray(cost), kind="stable")[:TOP_MODULES] for cost in (times, flops)]
    return np.array(list(dict.fromkeys(np.concatenate([*first, near]).tolist())), np.int64)[:MOST_MODULES]


def reduced_ops(ops: Any, cut: Cut) -> PackedTable:
    """Sums by phase, type, and whether they are counted; the largest of those that are not keep their names."""
    ops = _with_names(ops)
    ops = ops.append_column("rows", pa.array(np.ones(ops.num_rows)))
    found = ops.group_by(list(_OP_KEYS), use_threads=False).aggregate([(name, "sum") for name in (*_OP_SUMS, "rows")])
    found = found.sort_by([("io_bytes_sum", "descending"), *((name, "ascending") for name in _OP_KEYS[:3])])
    if found.num_rows > MOST_OPS:
        cut["operators"] += found.num_rows - MOST_OPS
        found = found.slice(0, MOST_OPS)
    columns = {name: found[name] for name in _OP_KEYS} | {name: found[f"{name}_sum"] for name in _OP_SUMS}
    return packed(pa.table(columns), OP_COLUMNS, cut)


def _with_names(ops: Any) -> Any:
    """Counted operators under one name, so that they become one row; the texts without their dictionaries."""
    names = of_column(ops, "op").cast(pa.string())
    uncounted = pc.and_(pc.invert(of_column(ops, "counted")), pc.invert(of_column(ops, "view")))
    io_bytes = pa.table({"op": names, "io": of_column(ops, "io_bytes")}).filter(uncounted).group_by(
        "op", use_threads=False).aggregate([("io", "sum")]).sort_by([("io_sum", "descending"), ("op", "ascending")])
    named = pc.and_(uncounted, pc.is_in(names, value_set=io_bytes["op"].combine_chunks()[:TOP_UNCOUNTED]))
    is_convolution = pc.match_substring(names, "conv")
    called = pc.if_else(named, names, pc.if_else(uncounted, OTHERS, pc.if_else(
        is_convolution, CONVOLUTIONS, OPERATORS)))
    columns: dict[str, Any] = {name: of_column(ops, name).cast(pa.float64()) for name in _OP_SUMS}
    columns |= {name: of_column(ops, name).cast(pa.string()) for name in ("phase", "dtype")}
    return pa.table({**columns, "op": called, **{name: of_column(ops, name) for name in ("counted", "view")}})


def digest_of(parameters: Any, cut: Cut) -> ParametersDigest:
    """What parameters of this rank are compared with those of others by."""
    stored, params, checksum = (integers(parameters, name) for name in ("stored_params", "params", "checksum"))
    texts = {name: text_numbers(parameters, name) for name in ("module_path", "name", "shape", "dtype")}
    named = [texts[name][1] + [""] for name in texts]  # the last stands for null
    rows = list(zip(*([names[number] for number in numbers.tolist()] for (numbers, _), names in zip(
        texts.values(), named, strict=True)), params.tolist(), integers(parameters, "whole_params").tolist(),
        strict=True))
    comparable = of_column(parameters, "checksum").is_valid().to_numpy(zero_copy_only=False)
    values = sorted((*row[:2], value) for row, value, known in zip(rows, checksum.tolist(), comparable.tolist(),
                                                                  strict=True) if known)
    differs = bool((stored != params).any())
    if differs and len(stored) > MOST_SHARDS:
        cut["sizes of shards"] += len(stored)
        differs = False
    return ParametersDigest(
        rows=len(rows), names_hash=hash_of(repr(rows).encode()), comparable=len(values),
        comparable_names_hash=hash_of(repr([row[:2] for row in values]).encode()),
        values_hash=hash_of(repr(values).encode()), params=int(params.sum()), stored_params=int(stored.sum()),
        stored=stored.astype("<i8").tobytes() if differs else b"")


