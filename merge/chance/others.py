"""The median of the others: what a rank is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np


def median_of_others(values: Any) -> Any:
    """The median over the other entries of the first axis, of each entry; NaN where there is none."""
    number = len(values)
    if number < 2:
        return np.full(values.shape, np.nan)
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(number).reshape(-1, *[1] * (values.ndim - 1)), axis=0)

    def without_itself(index: int) -> Any:
        return np.where(index < place, ordered[index], ordered[index + 1])

    middle = (number - 1) // 2
    return without_itself(middle) if number % 2 == 0 else (without_itself(middle - 1) + without_itself(middle)) / 2
