"""Makes the summary that a rank adds to the file of its host, from its finished folder.

Most tables are packed unchanged. Operators are added up, and parameters are reduced to what is needed to compare them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from distprof.contract.paths import RANK_JSON
from distprof.contract.rank_json import RankJson, read
from distprof.contract.rank_summary import (
    DTYPES,
    EXCHANGE_COLUMNS,
    MODULE_COLUMNS,
    NO_TEXT,
    OP_COLUMNS,
    STEP_COLUMNS,
    Arrivals,
    PackedTable,
    ParametersDigest,
    RankSummary,
)
from distprof.contract.tables import COLLECTIVES, MODULES, OPS, PARAMETERS, STEPS, Table
from distprof.summaries.arrivals import arrivals_of
from distprof.summaries.host_file import append
from distprof.summaries.packing import flags, hash_of, integers, is_known, packed, packed_arrays, reals, text_numbers
from distprof.summaries.rank_calls import RankCalls, rank_calls

JOINING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Ops by which ranks that share the work of a module exchange its parts."""
INSIDE = ("forward", "recompute")
STATISTICS = ("SyncBatchNorm",)
"""Classes of modules whose collectives do not mean that ranks share work."""
LARGE = ("shapes", "note")
"""Columns of operators that are not read."""
Content = TypeVar("Content")
Made = TypeVar("Made")


def add_summary(run: Path, folder: Path) -> None:
    """Makes the summary of a rank and adds it to the file of its host.

    Raises:
        DataError: Its rank.json cannot be read.
        OSError: It cannot be written.
    """
    append(run, summarise(folder))


def summarise(folder: Path, about: RankJson | None = None) -> RankSummary:
    """Returns the summary of a rank; damaged tables are listed and left out.

    Args:
        folder: The rank's folder.
        about: The content of its rank.json, if it was already read.

    Raises:
        DataError: Its rank.json cannot be read.
        FormatError: A newer distprof wrote it.
    """
    about = about if about is not None else read(folder / RANK_JSON, RankJson)
    return _Maker(folder).made(about)


class _Maker:
    """Reads the tables of one folder, and notes which cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._damaged: list[str] = []
        self._tables: dict[str, int] = {}

    def made(self, about: RankJson) -> RankSummary:
        steps, modules = self._table(STEPS), self._table(MODULES)
        calls = self._calls()
        empty = PackedTable()
        found = RankSummary(
            about=about, folder=self._folder.name,
            steps=self._of(STEPS, steps, lambda rows: packed(rows, STEP_COLUMNS)) or empty,
            modules=self._of(MODULES, modules, lambda rows: packed(rows, MODULE_COLUMNS)) or empty,
            ops=self._of(OPS, self._table(OPS), ops_by_kind) or empty,
            parameters=self._parameters(),
            exchanges=self._of(COLLECTIVES, calls, lambda rows: exchanges_of(rows, modules)) or empty,
            arrivals=self._arrivals(calls, steps))
        return replace(found, tables=self._tables, damaged=list(dict.fromkeys(self._damaged)))

    def _table(self, table: Table) -> Any | None:
        path = self._folder / table.file
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file:  # arrow cannot open a path that is not UTF-8
                opened = pq.ParquetFile(file)
                wanted = [name for name in opened.schema_arrow.names if name not in LARGE]
                found = opened.read(columns=wanted, use_threads=False)
        except Exception:  # noqa: BLE001 (arrow raises many classes for damage)
            self._damaged.append(table.file)
            return None
        self._tables[table.file] = found.num_rows
        return found

    def _calls(self) -> RankCalls | None:
        path = self._folder / COLLECTIVES.file
        if not path.is_file():
            return None
        found = self._of(COLLECTIVES, path, rank_calls)
        if found is not None:
            self._tables[COLLECTIVES.file] = len(found)
        return found

    def _parameters(self) -> ParametersDigest | None:
        return self._of(PARAMETERS, self._table(PARAMETERS), digest_of)

    def _arrivals(self, calls: RankCalls | None, steps: Any | None) -> Arrivals | None:
        return self._of(COLLECTIVES, calls, lambda rows: arrivals_of(rows, steps))

    def _of(self, table: Table, content: Content | None, make: Callable[[Content], Made]) -> Made | None:
        """Returns what is made of a table, if it exists; a table with other columns or types counts as damaged."""
        if content is None:
            return None
        try:
            return make(content)
        except Exception:  # noqa: BLE001 (a column may be anything in a damaged or foreign file)
            self._damaged.append(table.file)
            return None


def exchanges_of(calls: RankCalls, modules: Any | None) -> PackedTable:
    """Returns different calls of the first step that show how ranks divide the model, in order of first occurrence."""
    inside = np.isin(calls.op, _numbers(calls.ops, JOINING)) & np.isin(calls.phase, _numbers(calls.phases, INSIDE))
    inside &= ~calls.cut_off & (calls.module >= 0)
    inside &= ~np.isin(calls.module, _numbers(calls.modules, _statistics(modules)))
    chosen = (inside | calls.is_message) & (calls.step == calls.step.min(initial=np.iinfo(np.int64).max))
    row = np.flatnonzero(chosen)
    row = row[np.argsort(calls.enqueue[row], kind="stable")]
    keys = np.stack((calls.op[row], calls.group[row], calls.peer[row], inside[row])).astype(np.int64)
    _, first = np.unique(keys, axis=1, return_index=True)
    row = row[np.sort(first)]
    return packed_arrays(EXCHANGE_COLUMNS, {"op": calls.op[row], "group": calls.group[row],
                                            "peer": np.maximum(calls.peer[row], -1), "inside": inside[row]},
                         {"op": calls.ops})


def _statistics(modules: Any | None) -> list[str]:
    if modules is None:
        return []
    classes, paths = (modules[name].to_pylist() for name in ("class_name", "module_path"))
    return [path for path, name in zip(paths, classes, strict=True) if name in STATISTICS]


def _numbers(names: list[str], wanted: tuple[str, ...] | list[str]) -> list[int]:
    return [number for number, name in enumerate(names) if name in wanted]


_OP_SUMS = tuple(column.name for column in OP_COLUMNS if column.type == "float64")


def ops_by_kind(ops: pa.Table) -> PackedTable:
    """Returns sums by operator, phase, type, and whether it is counted, in order of first occurrence."""
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
    """Returns what is needed to compare the parameters of this rank with those of others."""
    stored, params, checksum = (integers(parameters, name) for name in ("stored_params", "params", "checksum"))
    texts = {name: text_numbers(parameters, name) for name in ("module_path", "name", "shape", "dtype")}
    named = [texts[name][1] + [""] for name in texts]  # the last one stands for null
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
