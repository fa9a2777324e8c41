"""The timeline of a rank as a table: rows of a scanner come in, row groups of a parquet file go out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from distprof.contract.columns import Column
from distprof.contract.merged_tables import EVENT_ARGS, MERGED_EVENTS
from distprof.contract.parquet import schema_of
from distprof.merge.chrome.parquet_file import Page, ParquetFile, constant_page, empty_page, integers_page, words_page
from distprof.merge.scan.engine import NONE, Interner, Scanner

ROWS_PER_GROUP = 1 << 17
IN_TABLE = ~np.isin(np.arange(256), np.frombuffer(b"Mstf\0", np.uint8))
"""By phase: metadata and arrows are no events of their own."""
INTEGERS = {column.name: key for column, key in EVENT_ARGS if column.type == "int64"}
TEXTS = {column.name: key for column, key in EVENT_ARGS if column.type != "int64"}
OF_THREAD = ("process", "thread", "thread_name")


def scanner_for_table() -> Scanner:
    """One that finds what the table needs of `args`."""
    return Scanner(integers=tuple(INTEGERS.values()), texts=tuple(TEXTS.values()))


class _Words:
    """Texts as the dictionary of a column. Texts that are spelled in two ways are one word; None is no word."""

    def __init__(self, texts: Iterable[str | None] = ()) -> None:
        self._words: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self._of_texts: list[int] = []
        """Number of the word that each text is; below 0 for none."""
        self._add(texts)

    def take_in(self, interner: Interner) -> None:
        """Adds those texts that are new."""
        if len(interner) > len(self._of_texts):
            self._add(map(_decoded, interner.texts(len(self._of_texts))))

    def _add(self, texts: Iterable[str | None]) -> None:
        for text in texts:
            number = -1
            if text is not None:
                word = text.encode()
                number = self._numbers.setdefault(word, len(self._words))
                if number == len(self._words):
                    self._words.append(word)
            self._of_texts.append(number)
        self._lookup = np.array([*self._of_texts, -1], np.int32)  # the last one is for -1, which is no text
        self._is_plain = len(self._words) == len(self._of_texts)

    def page(self, texts: Any, *, optional: bool) -> Page:
        """A column out of numbers of texts."""
        numbers = texts if self._is_plain else self._lookup.take(texts, mode="wrap")  # -1 is the last one
        return words_page(numbers, self._words, optional=optional)


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
        self._file = ParquetFile(path, schema_of(MERGED_EVENTS, metadata))
        self._scanner, self._tags, self._steps = scanner, tags, steps
        self._texts = _Words()
        self._words = {
            "name": _Words(), "category": _Words(), "phase": _Words(map(chr, range(256))),
            **{name: _Words(thread[part] or None for thread in threads) for part, name in enumerate(OF_THREAD)},
            **dict.fromkeys(TEXTS, self._texts)}
        room = ROWS_PER_GROUP + scanner.max_rows
        self._columns = {name: np.empty(room, source.dtype) for name, source in self._sources().items()}
        self._num_rows = 0
        self._empty = {*INTEGERS, *TEXTS}
        """Columns without a value in the rows that are held."""

    def _sources(self) -> dict[str, Any]:
        """The scanner's arrays, by column of the table."""
        scanner = self._scanner
        return {**{name: scanner.arrays[name] for name in ("name", "category", "thread", "phase")},
                **{name: scanner.integers[key] for name, key in INTEGERS.items()},
                **{name: scanner.interned[key] for name, key in TEXTS.items()},
                "start_ns": scanner.arrays["ts_ns"], "duration_ns": scanner.arrays["dur_ns"]}

    def add(self, keep: Any, start_ns: Any, duration_ns: Any) -> None:
        """Takes in the kept rows of the last scan, with times on the common clock."""
        scanner = self._scanner
        rows = np.flatnonzero((keep != 0) & IN_TABLE.take(scanner.column("phase")))
        place = slice(self._num_rows, self._num_rows + len(rows))
        for name, source in (self._sources() | {"start_ns": start_ns, "duration_ns": duration_ns}).items():
            if name in self._empty and not self._begins(name, source[:scanner.num_rows]):
                continue
            source.take(rows, out=self._columns[name][place], mode="clip")  # raise, the default, makes a copy
        self._num_rows += len(rows)
        if self._num_rows >= ROWS_PER_GROUP:
            self._flush()

    def _begins(self, name: str, source: Any) -> bool:
        """Whether a column that had no value so far has one in this scan: most of `args` are in few traces."""
        nothing = NONE if name in INTEGERS else -1
        if source.max(initial=nothing) == nothing:  # the least there is
            return False
        self._empty.discard(name)
        self._columns[name][:self._num_rows] = nothing
        return True

    def close(self) -> None:
        """Writes what is left."""
        if self._num_rows:
            self._flush()
        self._file.close()

    def _flush(self) -> None:
        scanner, columns = self._scanner, {name: column[:self._num_rows] for name, column in self._columns.items()}
        for words, interner in ((self._words["name"], scanner.names), (self._words["category"], scanner.categories),
                                (self._texts, scanner.texts)):
            words.take_in(interner)
        self._file.write([self._page(column, columns) for column in MERGED_EVENTS.columns], self._num_rows)
        self._num_rows = 0
        self._empty |= {*INTEGERS, *TEXTS}

    def _page(self, column: Column, columns: dict[str, Any]) -> Page:
        name = column.name
        if name in self._tags:
            return constant_page(self._tags[name], self._num_rows)
        if name in self._empty:
            return empty_page(self._num_rows)
        if name in self._words:
            return self._words[name].page(columns["thread" if name in OF_THREAD else name], optional=column.nullable)
        values = self._step(columns["start_ns"]) if name == "step" else columns[name]
        if values is None:
            return empty_page(self._num_rows)
        return integers_page(values, optional=column.nullable, bounded=name == "start_ns")

    def _step(self, start_ns: Any) -> Any:
        """Number of the step of each row, `NONE` outside of all; None where there is no step at all."""
        starts, ends, numbers = self._steps
        if not len(starts):
            return None
        place = np.searchsorted(starts, start_ns, "right") - 1
        inside = (place >= 0) & (start_ns < ends[np.maximum(place, 0)])
        return np.where(inside, numbers[np.maximum(place, 0)], NONE)
