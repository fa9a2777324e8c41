"""One module of a tree as its source (a count, a merged run) hands it to the reporters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One module and its values."""

    path: str
    """Path from the root; the root is '', a second root model is 'model1:'."""
    class_name: str
    values: Mapping[str, Any]
    """Key of a column (`tree_columns.TREE_COLUMNS`) -> value; missing or None is unknown."""
    group: str = ""
    """Rows of one group form one tree, such as a pipeline stage."""
    marks: tuple[str, ...] = ()
    """Words after the name: shared, not called."""
