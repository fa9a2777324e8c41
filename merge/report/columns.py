"""Tables as columns: `{"rank": [0, 1], "duration_ns": [3, 4]}` takes less room than a row each, and draws as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

Columns = dict[str, list[Any]]


def columns_of(frame: pl.DataFrame) -> Columns:
    """A frame as columns."""
    return frame.to_dict(as_series=False)


def columns_of_rows(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Columns:
    """Rows with these keys as columns."""
    found = list(rows)
    return {name: [row[name] for row in found] for name in names}


def numbered(values: pl.Series) -> tuple[list[Any], list[int | None]]:
    """The different values in the order in which they come, and the number of each one; None stays so."""
    known = values.drop_nulls().unique(maintain_order=True)
    places = {value: place for place, value in enumerate(known.to_list())}
    return list(places), [None if value is None else places[value] for value in values.to_list()]


def rows_of(table: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Columns as rows."""
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
