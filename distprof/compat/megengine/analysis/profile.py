"""Operators of a profile as a table, whoever wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

SCHEMA = {
    "rank": pl.Int64(), "name": pl.String(), "type": pl.String(), "operator": pl.String(), "id": pl.String(),
    "device_end": pl.Float64(), "device_kern": pl.Float64(), "host_end": pl.Float64(), "host_kern": pl.Float64(),
    "computation": pl.Float64(), "memory": pl.Float64(), "in_shapes": pl.String(), "in_layouts": pl.String(),
    "out_shapes": pl.String(), "dtypes": pl.List(pl.String())}
"""A row an operator and rank. `operator`: torch's name, null in what MegEngine wrote. `device_end`, ...: seconds from
the start until the operator, or the wait before its kernel, is over. Shapes and strides are JSON. Null: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was read."""

    rows: pl.DataFrame
    """`SCHEMA`."""
    notes: Sequence[str] = ()
    """Sentences on what the numbers are, and on what was left out."""
