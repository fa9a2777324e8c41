"""The timeline of a rank as a table: rows of a scanner come in, batches of a parquet file go out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distprof.contract import EVENT_ARGS, MERGED_EVENTS, Column
from distprof.merge.engine import NONE, Interner, Scanner
from distprof.tables import schema_of

ROWS_PER_GROUP = 1 << 16
NOT_IN_TABLE = np.isin(np.arange(256), np.frombuffer(b"Mstf\0", np.uint8))
"""By phase: metadata and arrows are no events of their own."""
INTEGERS = {column.name: key for column, key in EVENT_ARGS if column.type == "int64"}
TEXTS = {column.name: key for column, key in EVENT_ARGS if column.type != "int64"}


def scanner_for_table() -> Scanner:
    """One that finds what the table needs of `args`."""
    return Scanner(integers=tuple(INTEGERS.values()), texts=tuple(TEXTS.values()))


class _Words:
    """Interned bytes as the dictionary of a column; decoded once."""

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._words: list[str] = []
        self._array = pa.array([], pa.string())

    def column(self, numbers: Any) -> Any:
        """The words of these numbers; null below 0."""
        if len(self._interner) > len(self._words):
            self._words += [_decoded(text) for text in self._interner.texts(len(self._words))]
            self._array = pa.array(self._words, pa.string())
        unknown = numbers < 0
        indices = pa.nulls(len(numbers), pa.int32()) if unknown.all() else pa.array(numbers, mask=unknown)
        return pa.DictionaryArray.from_arrays(indices, self._array)


def _decoded(text: bytes) -> str:
    if b"\\" in text:
        try:
            return msgspec.json.decode(b'"%s"' % text, type=str)
        except msgspec.DecodeError:
            pass
    return text.decode("utf-8", "replace")


class EventTable:
    """Writes the table of a rank, part after part."""

    def __init__(self, path: Path, scanner: Scanner, *, tags: Mapping[str, int], threads: list[tuple[str, str, str]],
                 steps: tuple[Any, Any, Any], metadata: Mapping[str, str]) -> None:
        """Opens the file.

        Args:
            path: Of the file.
            scanner: Made by `scanner_for_table`.
            tags: Values of the columns that are equal in all rows.
            threads: Process, thread and its name, by thread number of the scanner.
            steps: Start, end and number of steps, on the common clock, ascending.
            metadata: Goes into the file's schema.
        """
        self._schema = schema_of(MERGED_EVENTS, metadata)
        words = [field.name for field in self._schema if pa.types.is_dictionary(field.type)]
        self._writer = pq.ParquetWriter(
            path, self._schema, compression="lz4", write_statistics=["start_ns"],
            use_dictionary=words, column_encoding={
                field.name: "DELTA_BINARY_PACKED" for field in self._schema if field.name not in words})
        self._scanner, self._tags, self._steps = scanner, tags, steps
        self._words = {name: _Words(interner) for name, interner in (
            ("name", scanner.names), ("category", scanner.categories), *((name, scanner.texts) for name in TEXTS))}
        self._threads = [pa.array([thread[part] for thread in threads], pa.string()) for part in range(3)]
        self._unnamed = [np.array([not thread[part] for thread in threads], bool) for part in range(3)]
        self._parts: list[dict[str, Any]] = []
        self._num_rows = 0

    def add(self, keep: Any, start_ns: Any, duration_ns: Any) -> None:
        """Takes in the kept rows of the last scan, with times on the common clock."""
        scanner, phase = self._scanner, self._scanner.column("phase")
        rows = np.flatnonzero((keep != 0) & ~NOT_IN_TABLE[phase])
        part = {"start_ns": start_ns[rows], "duration_ns": duration_ns[rows], "phase": phase[rows],
                **{name: scanner.column(name)[rows] for name in ("name", "category", "thread")}}
        part |= {name: scanner.integers[key][rows] for name, key in INTEGERS.items()}
        part |= {name: scanner.interned[key][rows] for name, key in TEXTS.items()}
        self._parts.append(part)
        self._num_rows += len(rows)
        if self._num_rows >= ROWS_PER_GROUP:
            self._flush()

    def close(self) -> None:
        """Writes what is left."""
        if self._num_rows:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        joined = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        self._parts, self._num_rows = [], 0
        arrays = [self._column(column, joined) for column in MERGED_EVENTS.columns]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def _column(self, column: Column, joined: dict[str, Any]) -> Any:
        name, count = column.name, len(joined["start_ns"])
        if name in self._tags:
            return pa.array(np.full(count, self._tags[name]))
        if name in self._words:
            return self._words[name].column(joined[name])
        if name in ("process", "thread", "thread_name"):
            part = ("process", "thread", "thread_name").index(name)
            unnamed = self._unnamed[part][joined["thread"]]
            return pa.DictionaryArray.from_arrays(pa.array(joined["thread"], mask=unnamed), self._threads[part])
        if name == "phase":
            return pa.DictionaryArray.from_arrays(pa.array(joined[name].astype(np.int32)), _PHASES)
        values = self._step(joined["start_ns"]) if name == "step" else joined[name]
        if not column.nullable:
            return pa.array(values)
        unknown = values == NONE
        return pa.nulls(count, pa.int64()) if unknown.all() else pa.array(values, mask=unknown)

    def _step(self, start_ns: Any) -> Any:
        starts, ends, numbers = self._steps
        if not len(starts):
            return np.full(len(start_ns), NONE)
        place = np.searchsorted(starts, start_ns, "right") - 1
        inside = (place >= 0) & (start_ns < ends[np.maximum(place, 0)])
        return np.where(inside, numbers[np.maximum(place, 0)], NONE)


_PHASES = pa.array([chr(code) for code in range(256)], pa.string())
