"""Joins what many ranks left: each column becomes one array, and values that ranks share are kept once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from distprof.arrays import Array
from distprof.contract.rank_json import RankJson
from distprof.contract.rank_summary import NO_INTEGER, PackedTable

OWN = ("clock", "clock_sync", "peak_memory")
"""Fields of `RankJson` that no two ranks share."""
NUMBERS = (int, float, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The rows of one table, of all ranks."""

    rank: Array
    """The rank of each row."""
    columns: Mapping[str, Array]
    """The columns as arrays; texts are numbers, -1 for null."""
    texts: Mapping[str, Sequence[str]]
    """Column of texts -> the texts that its numbers stand for."""

    def of(self, ranks: Collection[int]) -> Joined:
        """Returns the rows of some ranks."""
        held = np.isin(self.rank, list(ranks))
        return replace(self, rank=self.rank[held],
                       columns={name: values[held] for name, values in self.columns.items()})

    def pieces(self, num_rows: int) -> Iterator[Joined]:
        """Yields pieces of about `num_rows` rows that contain whole ranks; one empty piece if there are no rows."""
        begins = np.flatnonzero(np.diff(self.rank, prepend=-1))
        starts = [*begins[np.diff(begins // num_rows, prepend=-1) > 0].tolist()] or [0]
        for start, end in pairwise([*starts, len(self.rank)]):
            yield replace(self, rank=self.rank[start:end],
                          columns={name: values[start:end] for name, values in self.columns.items()})


def with_values(joined: Joined) -> Joined:
    """Returns the same without integer columns whose value is unknown in every row."""
    unknown = [name for name, values in joined.columns.items()
               if values.dtype == np.int64 and (values == NO_INTEGER).all()]
    return replace(joined, columns={name: values for name, values in joined.columns.items() if name not in unknown})


class ColumnJoin:
    """Concatenates columns of packed tables of many ranks."""

    def __init__(self, kinds: Mapping[str, str], texts: Collection[str] = ()) -> None:
        self._kinds = dict(kinds)
        self._sizes = {name: np.dtype(kind).itemsize for name, kind in kinds.items()}
        self._bytes = {name: bytearray() for name in kinds}
        self._ranks: list[int] = []
        self._rows: list[int] = []
        self._known = {name: dict[str, int]() for name in texts}
        self._places = dict[tuple[str, tuple[str, ...]], Any]()
        self._renumbered_columns = dict[tuple[str, tuple[str, ...], bytes], bytes]()

    def add(self, rank: int, table: PackedTable) -> None:
        """Adds the rows of a rank; a table whose columns have the wrong length is left out."""
        if not table.rows or not self._fits(table):
            return
        self._ranks.append(rank)
        self._rows.append(table.rows)
        for name, held in self._bytes.items():
            column = table.columns.get(name)
            if column is None:
                held += self._unknown(name, table.rows)
            elif name in self._known:
                key = name, tuple(table.texts.get(name, ())), column
                # many ranks have the same texts in the same rows
                known = self._renumbered_columns.get(key)
                if known is None:
                    known = self._renumbered_columns[key] = self._renumbered(*key)
                held += known
            else:
                held += column

    def _fits(self, table: PackedTable) -> bool:
        sizes, rows = self._sizes, table.rows
        return all(len(column) == rows * sizes[name] for name, column in table.columns.items() if name in sizes)

    def _unknown(self, name: str, rows: int) -> bytes:
        kind = self._kinds[name]
        value = {"<i8": NO_INTEGER, "<f8": np.nan, "u1": 0, "<i4": -1}[kind]
        return np.full(rows, value, kind).tobytes()

    def _renumbered(self, name: str, texts: tuple[str, ...], column: bytes) -> bytes:
        places = self._places.get((name, texts))
        if places is None:
            known = self._known[name]
            places = np.array([*(known.setdefault(text, len(known)) for text in texts), -1], "<i4")
            self._places[name, texts] = places
        numbers = np.frombuffer(column, "<i4")
        inside = np.where((numbers < 0) | (numbers >= len(texts)), len(texts), numbers)
        return bytes(places[inside].tobytes())

    def joined(self) -> Joined:
        """Returns all rows."""
        rank = np.repeat(np.array(self._ranks, np.int32), np.array(self._rows, np.int64))
        columns = {name: np.frombuffer(held, self._kinds[name]) for name, held in self._bytes.items()}
        return Joined(rank=rank, columns=columns, texts={name: list(known) for name, known in self._known.items()})


class SharedValues:
    """Keeps equal values once: most of what thousands of ranks say of themselves is the same."""

    def __init__(self) -> None:
        self._known = dict[Any, Any]()

    def about(self, about: RankJson) -> RankJson:
        """Returns an equal description that shares its values with earlier ones."""
        fields = {name: getattr(about, name) for name in RankJson.__struct_fields__}
        return RankJson(**{name: value if name in OWN or isinstance(value, NUMBERS) else self.kept(value)
                           for name, value in fields.items()})

    def kept(self, value: Any) -> Any:
        """Returns the first value that was equal; values have the types of JSON or are structs."""
        key = value if isinstance(value, str) else (type(value), msgspec.msgpack.encode(value))
        return self._known.setdefault(key, value)
