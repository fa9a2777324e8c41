"""Tables of a rank as their file of the host has them: operators added up, and what parameters are compared by."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from distprof.contract.rank_summary import DTYPES, NO_TEXT, OP_COLUMNS, PackedTable, ParametersDigest
from distprof.summaries.packing import flags, hash_of, integers, is_known, packed_arrays, reals, text_numbers

_OP_SUMS = tuple(column.name for column in OP_COLUMNS if column.type == "float64")


def ops_by_kind(ops: pa.Table) -> PackedTable:
    """Sums by operator, phase, type, and whether it is counted, in the order of the first row of each."""
    texts = {name: text_numbers(ops, name) for name in ("op", "phase", "dtype")}
    keys = np.stack((*(numbers for numbers, _ in texts.values()), flags(ops, "counted"), flags(ops, "view")))
    unique, first, row = np.unique(keys.astype(np.int64), axis=1, return_index=True, return_inverse=True)
    order, row = np.argsort(first, kind="stable"), row.reshape(-1)
    sums = {name: np.bincount(row, np.nan_to_num(reals(ops, name)), unique.shape[1]) for name in _OP_SUMS}
    arrays = {**dict(zip((*texts, "counted", "view"), unique, strict=True)),
              "kind": np.full(unique.shape[1], NO_TEXT), **sums}
    return packed_arrays({column.name: DTYPES[column.type] for column in OP_COLUMNS},
                         {name: values[order] for name, values in arrays.items()},
                         {**{name: names for name, (_, names) in texts.items()}, "kind": []})


def digest_of(parameters: pa.Table) -> ParametersDigest:
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
    return ParametersDigest(
        rows=len(rows), names_hash=hash_of(repr(rows).encode()), comparable=len(values),
        comparable_names_hash=hash_of(repr([row[:2] for row in values]).encode()),
        values_hash=hash_of(repr(values).encode()), params=int(params.sum()), stored_params=int(stored.sum()),
        stored=stored.astype("<i8").tobytes() if (stored != params).any() else b"")
