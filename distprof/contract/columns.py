"""How a table of the run directory is described: a file name and documented columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

TableRow = dict[str, Any]
"""One row of a table: column -> value; columns that are missing are null."""
Type = Literal["int64", "float64", "bool", "string", "category", "list<int64>"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    type: Type
    """`category` is a dictionary-encoded string."""
    doc: str
    """Meaning, unit and source."""
    nullable: bool = False
    """True where a value may be unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One parquet file of the run directory."""

    file: str
    doc: str
    columns: tuple[Column, ...]

    def names(self) -> list[str]:
        """Column names in file order."""
        return [column.name for column in self.columns]


def int64(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name=name, type="int64", doc=doc, nullable=nullable)


def text(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name=name, type="category", doc=doc, nullable=nullable)


def real(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name=name, type="float64", doc=doc, nullable=nullable)
