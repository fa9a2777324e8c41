"""Combines integer columns into one key, and sorts such keys, so that rows are grouped in a fraction of the time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from distprof.arrays import Array, Integers

MOST = 1 << 62


def one_key(columns: Iterable[Integers]) -> Integers:
    """Returns an int64 per row that is equal if all columns are.

    Args:
        columns: Arrays of integers of equal length; at least one.
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
    """Returns the stable order of integers from 0 on: a radix sort by 16 bits at a time, which is fast in numpy."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    most, shift = int(numbers.max(initial=0)) >> 16, 16
    while most:
        order = order[np.argsort((numbers[order] >> shift).astype(np.uint16), kind="stable")]
        most, shift = most >> 16, shift + 16
    return order
