"""Numbers items by their keys in the order in which they are first seen, while ranks are read one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray


class FirstSeen:
    """Items that several ranks have; sums over ranks are kept in arrays, indexed by the items' numbers."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = list(keys)
        self._rows = pl.DataFrame()

    @property
    def rows(self) -> pl.DataFrame:
        """One row per item, with the other columns as they were first seen."""
        return self._rows

    def __len__(self) -> int:
        """Returns the number of items."""
        return len(self._rows)

    def numbers(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """Returns the number of each row's item; new items get the next numbers."""
        if not self._rows.width:
            self._rows = frame.clear()
        found = self._found(frame)
        if found.null_count():
            new = frame.filter(found.is_null()).unique(self._keys, keep="first", maintain_order=True)
            self._rows = pl.concat([self._rows, new], rechunk=True)
            found = self._found(frame)
        return found.to_numpy().astype(np.int64)

    def _found(self, frame: pl.DataFrame) -> pl.Series:
        known = self._rows.lazy().select(self._keys).with_row_index("number")
        return frame.lazy().select(self._keys).join(
            known, on=self._keys, how="left", nulls_equal=True, maintain_order="left").collect()["number"]

    def grown(self, values: NDArray[Any], fill: float = 0) -> NDArray[Any]:
        """Returns an array extended to one row per item, with new rows filled."""
        more = len(self) - len(values)
        return np.concatenate([values, np.full((more, *values.shape[1:]), fill, values.dtype)]) if more else values
