"""Several columns of numbers as one, and the order of such numbers: rows are grouped in a fraction of the time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from distprof.arrays import Array, Integers

MOST = 1 << 62


def one_key(columns: Iterable[Integers]) -> Integers:
    """int64 a row, equal where all columns are.

    Args:
        columns: Arrays of integers, as long as each other; at least one.
    """
    key, count = np.zeros(0, np.int64), 1
    for place, column in enumerate(columns):
        if not len(column):
            return np.empty(0, np.int64)
        least = int(column.min())
        size = int(column.max()) - least + 1
        if size >= MOST // count:
            _, key = np.unique(key, return_inverse=True) if place else (None, key)
            _, column = np.unique(column, return_inverse=True)
            count, least, size = int(key.max(initial=0)) + 1, 0, int(column.max()) + 1
        key = (column - least).astype(np.int64) if not place else key * size + (column - least)
        count *= size
    return key


def sorted_places(numbers: Array) -> Integers:
    """Order of integers from 0 on, equal ones as they come: 16 bits after the other, which numpy sorts in no time."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    most, shift = int(numbers.max(initial=0)) >> 16, 16
    while most:
        order = order[np.argsort((numbers[order] >> shift).astype(np.uint16), kind="stable")]
        most, shift = most >> 16, shift + 16
    return order
