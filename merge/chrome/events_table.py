"""Writes events.parquet: the timeline of each rank as a table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from distprof.arrays import Array, Flags, Integers
from distprof.contract.merged import EVENT_ARGS, MERGED_EVENTS
from distprof.contract.parquet import schema_of
from distprof.contract.tables import Column
from distprof.merge.chrome.rank_events import DecidedEvents, RankEvents
from distprof.merge.chrome.rank_plan import Plans, RankPlan
from distprof.merge.chrome.rank_tables import RankTables, keep_table
from distprof.merge.chrome.work_folder import Attempt
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run
from distprof.merge.scan.engine import Interner
from distprof.merge.scan.repair import repaired
from distprof.merge.scan.scanned_columns import NONE

if TYPE_CHECKING:
    from distprof.storage.writing.by_workers import Place, WholeObjects

ROWS_PER_GROUP = 1 << 16
MANY = 8
"""If a column has this many times fewer rows than there are words, its words are found by sorting, not by counting."""
IN_TABLE = ~np.isin(np.arange(256), np.frombuffer(b"Mstf\0", np.uint8))
"""By phase: whether it is in the table; metadata and arrows are not events of their own."""
INTEGERS = {column.name: key for column, key in EVENT_ARGS if column.type == "int64"}
TEXTS = {column.name: key for column, key in EVENT_ARGS if column.type != "int64"}
OF_THREAD = ("process", "thread", "thread_name")


class _Words:
    """Texts as the dictionary of a column. Different spellings of a text are one word; None is not a word."""

    def __init__(self, texts: Iterable[str | None] = ()) -> None:
        self._words: list[str] = []
        self._numbers: dict[str, int] | None = None
        """Number of each word; None until a word has two spellings, because it takes much memory if there are many
        names."""
        self._num_texts = 0
        self._lookup = np.full(1, -1, np.int32)
        """Number of the word of each text, negative for none; then -1, for rows without text."""
        self._add(map(self._number, texts))

    def take_in(self, interner: Interner) -> None:
        """Adds those texts that are new."""
        if len(interner) == self._num_texts:
            return
        texts = interner.texts(self._num_texts)
        if self._numbers is None and all(map(_is_plain, texts)):
            self._add(range(self._num_texts, self._num_texts + len(texts)))
            self._words += map(bytes.decode, texts)
        else:
            self._add(self._number(_decoded(text)) for text in texts)

    def _add(self, numbers: Iterable[int]) -> None:
        new = list(numbers)
        known, self._num_texts = self._num_texts, self._num_texts + len(new)
        if self._num_texts >= len(self._lookup):  # doubles the array, so that adding stays cheap
            self._lookup = np.append(self._lookup, np.full(self._num_texts + 1, -1, np.int32))
        self._lookup[known:self._num_texts] = new

    def _number(self, text: str | None) -> int:
        if text is None:
            return -1
        if self._numbers is None:
            self._numbers = {word: number for number, word in enumerate(self._words)}
        number = self._numbers.setdefault(text, len(self._words))
        if number == len(self._words):
            self._words.append(text)
        return number

    def array(self, texts: Array) -> Any:
        """Returns the dictionary array of a column of text numbers; its dictionary has only words of this column."""
        numbers = texts
        if len(self._words) < self._num_texts:
            numbers = self._lookup[:self._num_texts + 1].take(texts, mode="wrap")  # -1 is the last one
        used, indices, lacks = _used(numbers, len(self._words))
        words = [self._words[number] for number in used.tolist()]
        return pa.DictionaryArray.from_arrays(
            _array(indices, numbers >= 0 if lacks else None), pa.array(words, pa.string()), safe=False)


def _used(numbers: Array, count: int) -> tuple[Array, Array, bool]:
    """Returns which of `count` words a column has, the index of each row's word (int32), and if some have none."""
    if count > MANY * len(numbers):
        used, indices = np.unique(numbers, return_inverse=True)
        lacks = int(np.count_nonzero(used[:1] < 0))
        return used[lacks:], np.maximum(indices - lacks, 0).astype(np.int32), lacks > 0
    is_used = np.bincount(numbers + 1, minlength=count + 1) > 0  # the first entry is for rows without a word
    places = np.append(np.cumsum(is_used[1:], dtype=np.int32) - 1, np.int32(0))  # the last entry is used for -1
    return np.flatnonzero(is_used[1:]), places.take(numbers, mode="wrap"), bool(is_used[0])


def _array(values: Array, there: Flags | None = None) -> Any:
    """Returns an Arrow array of integers without a copy; null where `there` is False."""
    valid = None if there is None else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(values)])


def _is_plain(text: bytes) -> bool:
    """Returns whether no other text can be the same word."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return b"\\" not in text


def _decoded(text: bytes) -> str:
    if b"\\" in text:
        try:
            return msgspec.json.decode(repaired(b'"%s"' % text), type=str)
        except msgspec.DecodeError:
            pass
    return text.decode("utf-8", "replace")


class EventTables(RankTables):
    """Writes a folder with a table per rank."""

    def __init__(self, folder: Path, run: Run, clock: Clock, plans: Plans, objects: WholeObjects | None = None) -> None:
        """Writes to the folder; if `objects` is given, workers store the tables there."""
        super().__init__(folder, MERGED_EVENTS.file, objects)

    def rank_writer(self, plan: RankPlan) -> EventTable:
        return EventTable(*self.where(plan))


class EventTable:
    """Writes the table of a rank in row groups."""

    integers, texts = tuple(INTEGERS.values()), tuple(TEXTS.values())

    def __init__(self, path: Path, work: Path, place: Place | None = None) -> None:
        self._path, self._work, self._place = path, work, place

    def begin(self, events: RankEvents) -> None:
        self._counts = events.counts
        scanner, steps, plan, threads = events.scanner, events.steps, events.plan, events.threads
        self._schema = schema_of(MERGED_EVENTS, plan.table_metadata)
        self._attempt = Attempt(self._path, self._work)
        self._file = _open(self._attempt.file, self._schema)  # arrow cannot open paths that are not UTF-8
        self._scanner, self._tags, self._steps = scanner, plan.tags, steps
        self._texts = _Words()
        self._words = {
            "name": _Words(), "category": _Words(), "phase": _Words(map(chr, range(256))),
            **{name: _Words(thread[part] or None for thread in threads) for part, name in enumerate(OF_THREAD)},
            **dict.fromkeys(TEXTS, self._texts)}
        room = ROWS_PER_GROUP + scanner.max_rows
        self._columns = {name: np.empty(room, source.dtype) for name, source in self._sources().items()}
        self._nulls = {kind: pa.nulls(room, kind) for kind in set(self._schema.types)}
        self._num_rows = 0
        self._empty = {*INTEGERS, *TEXTS, *(() if len(steps[0]) else ("step",))}
        """Columns without any value in the rows that are held."""

    def _sources(self) -> dict[str, Array]:
        """Returns the scanner's arrays, by column of the table."""
        scanner = self._scanner
        return {**{name: scanner.arrays[name] for name in ("name", "category", "thread", "phase")},
                **{name: scanner.integers[key] for name, key in INTEGERS.items()},
                **{name: scanner.interned[key] for name, key in TEXTS.items()},
                "start_ns": scanner.arrays["ts_ns"], "duration_ns": scanner.arrays["dur_ns"]}

    def add(self, events: DecidedEvents) -> None:
        """Adds the events that are kept, with times on the common clock."""
        scanner = events.scanner
        rows = np.flatnonzero((events.keep != 0) & IN_TABLE.take(scanner.column("phase")))
        place = slice(self._num_rows, self._num_rows + len(rows))
        times = {"start_ns": events.start_ns, "duration_ns": events.duration_ns}
        for name, source in (self._sources() | times).items():
            if name in self._empty and not self._begins(name, source[:scanner.num_rows]):
                continue
            source.take(rows, out=self._columns[name][place], mode="clip")  # the default mode, raise, makes a copy
        self._num_rows += len(rows)
        if self._num_rows >= ROWS_PER_GROUP:
            self._flush()

    def _begins(self, name: str, source: Array) -> bool:
        """Returns whether a so far empty column has a value in this scan: few traces have most of the `args`."""
        nothing = NONE if name in INTEGERS else -1
        if source.max(initial=nothing) == nothing:  # the smallest value
            return False
        self._empty.discard(name)
        self._columns[name][:self._num_rows] = nothing
        return True

    def end(self) -> None:
        if self._num_rows:
            self._flush()
        self._file.close()
        keep_table(self._attempt, self._place, self._counts)

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            self._file.is_open = False  # otherwise its destructor tries again and prints a traceback
            raise
        finally:
            self._attempt.close()

    def _flush(self) -> None:
        scanner, columns = self._scanner, {name: column[:self._num_rows] for name, column in self._columns.items()}
        for words, interner in ((self._words["name"], scanner.names), (self._words["category"], scanner.categories),
                                (self._texts, scanner.texts)):
            words.take_in(interner)
        arrays = [self._array(column, columns) for column in MERGED_EVENTS.columns]
        self._file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._num_rows = 0
        self._empty |= {*INTEGERS, *TEXTS}

    def _array(self, column: Column, columns: dict[str, Array]) -> Any:
        name, kind = column.name, self._schema.field(column.name).type
        if name in self._tags:
            return _array(np.full(self._num_rows, self._tags[name]))
        if name in self._empty:
            return self._nulls[kind][:self._num_rows]
        if name in self._words:
            return self._words[name].array(columns["thread" if name in OF_THREAD else name])
        values = self._step(columns["start_ns"]) if name == "step" else columns[name]
        there = values != NONE
        return _array(values, None if there.all() else there)

    def _step(self, start_ns: Integers) -> Integers:
        """Returns the step of each row, `NONE` outside of all steps."""
        starts, ends, numbers = self._steps
        place = np.searchsorted(starts, start_ns, "right") - 1
        inside = (place >= 0) & (start_ns < ends[np.maximum(place, 0)])
        return np.where(inside, numbers[np.maximum(place, 0)], NONE)


def _open(file: IO[bytes], schema: pa.Schema) -> Any:
    """Opens a Parquet writer tuned for long columns of few values: page-sized batches, and statistics of times only."""
    import pyarrow.parquet as pq  # takes a while

    words = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    return pq.ParquetWriter(
        file, schema, compression="lz4", use_dictionary=words, write_statistics=["start_ns"], write_batch_size=1 << 16,
        column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names if name not in words})
