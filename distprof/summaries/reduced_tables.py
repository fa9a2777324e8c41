"""Tables of a rank reduced to what a summary has room for: steps, modules that matter, operators, parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from distprof.contract.rank_summary import (
    DTYPES,
    MODULE_COLUMNS,
    MOST_MODULES,
    MOST_OPS,
    MOST_SHARDS,
    MOST_STEPS,
    NO_TEXT,
    OP_COLUMNS,
    STEP_COLUMNS,
    TOP_MODULES,
    TOP_UNCOUNTED,
    PackedTable,
    ParametersDigest,
)
from distprof.summaries.packing import (
    Cut,
    flags,
    hash_of,
    integers,
    is_known,
    packed,
    packed_arrays,
    reals,
    shortened,
    text_numbers,
)

OPERATORS, CONVOLUTIONS, OTHERS = "operators", "convolutions", "other operators"
"""Names of reduced rows: what is counted, of it convolutions, and small ones that are not."""
_OP_SUMS = tuple(column.name for column in OP_COLUMNS if column.type == "float64")


def reduced_steps(steps: Any, cut: Cut) -> PackedTable:
    """The last steps."""
    if steps.num_rows > MOST_STEPS:
        cut["steps"] += steps.num_rows - MOST_STEPS
        steps = steps.slice(steps.num_rows - MOST_STEPS)
    return packed(steps, STEP_COLUMNS, cut)


def reduced_modules(modules: Any, cut: Cut) -> PackedTable:
    """Top modules by time and by FLOPs, and as many of those near the root as fit, in the order of the table."""
    if modules.num_rows <= MOST_MODULES:
        return packed(modules, MODULE_COLUMNS, cut)
    cut["modules"] += modules.num_rows - MOST_MODULES
    return packed(modules, MODULE_COLUMNS, cut, np.sort(_modules_that_matter(modules)))


def _modules_that_matter(modules: Any) -> Any:
    costs = [np.sum([np.nan_to_num(reals(modules, f"{part}_{what}")) for part in ("fwd", "bwd", "recompute")], axis=0)
             for what in ("time_ns", "flops")]
    near = np.argsort(integers(modules, "depth"), kind="stable")
    first = [np.argsort(-cost, kind="stable")[:TOP_MODULES] for cost in costs]
    return np.array(list(dict.fromkeys(np.concatenate([*first, near]).tolist())), np.int64)[:MOST_MODULES]


def reduced_ops(ops: Any, cut: Cut) -> PackedTable:
    """Sums by phase, type, and whether they are counted; the largest of those that are not keep their names."""
    (op, names), *others = (text_numbers(ops, name) for name in ("op", "phase", "dtype"))
    counted, view, io_bytes = flags(ops, "counted"), flags(ops, "view"), reals(ops, "io_bytes")
    called = _called(names, op, ~counted & ~view, io_bytes)
    known = list(dict.fromkeys(called))
    number = np.array([known.index(name) for name in called], np.int64)
    keys = np.stack((number, *(numbers for numbers, _ in others), counted, view)).astype(np.int64)
    unique, row = np.unique(keys, axis=1, return_inverse=True)
    row = row.reshape(-1)
    sums = {name: np.bincount(row, np.nan_to_num(reals(ops, name)), unique.shape[1]) for name in _OP_SUMS}
    order = np.lexsort((*unique[::-1], -sums["io_bytes"]))[:MOST_OPS]
    cut["operators"] += max(unique.shape[1] - MOST_OPS, 0)
    arrays = {"op": unique[0], "phase": unique[1], "dtype": unique[2], "counted": unique[3], "view": unique[4],
              "kind": np.full(unique.shape[1], NO_TEXT), **sums}
    texts = {"op": [shortened(name, cut) for name in known], "phase": others[0][1], "dtype": others[1][1], "kind": []}
    return packed_arrays({column.name: DTYPES[column.type] for column in OP_COLUMNS},
                         {name: values[order] for name, values in arrays.items()}, texts)


def _called(names: list[str], op: Any, uncounted: Any, io_bytes: Any) -> list[str]:
    """What the row of each operator is called: counted ones alike, so that they become one."""
    moved = np.bincount(op[uncounted], np.nan_to_num(io_bytes[uncounted]), len(names))
    there = np.bincount(op[uncounted], minlength=len(names)) > 0
    largest = [number for number in np.argsort(-moved, kind="stable").tolist() if there[number]]
    kept = set(largest[:TOP_UNCOUNTED])
    of_counted = [CONVOLUTIONS if "conv" in name else OPERATORS for name in names]
    return [names[number] if number in kept and is_open else OTHERS if is_open else of_counted[number]
            for number, is_open in zip(op.tolist(), uncounted.tolist(), strict=True)]


def digest_of(parameters: Any, cut: Cut) -> ParametersDigest:
    """What parameters of this rank are compared with those of others by."""
    stored, params, checksum = (integers(parameters, name) for name in ("stored_params", "params", "checksum"))
    texts = {name: text_numbers(parameters, name) for name in ("module_path", "name", "shape", "dtype")}
    named = [texts[name][1] + [""] for name in texts]  # the last stands for null
    rows = list(zip(*([names[number] for number in numbers.tolist()] for (numbers, _), names in zip(
        texts.values(), named, strict=True)), params.tolist(), integers(parameters, "whole_params").tolist(),
        strict=True))
    comparable = is_known(parameters, "checksum")
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


