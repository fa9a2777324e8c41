"""What a table of modules is made of: whoever has numbers by module makes a `Row` of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One module and what is known of it."""

    path: str
    """Path from the root; the root is '', a second root model is 'model1:'."""
    class_name: str
    values: Mapping[str, Any]
    """Key of a column (`columns.COLUMNS`) -> value; what is missing or None is unknown."""
    group: str = ""
    """Rows of one group make one tree: a pipeline stage."""
    marks: tuple[str, ...] = ()
    """Words shown behind the name: shared, not called."""
