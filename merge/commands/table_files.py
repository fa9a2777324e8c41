"""Tables that commands hand to other programs."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from distprof.errors import UsageError
from distprof.files import told, write_whole


def as_csv(table: pl.DataFrame) -> str:
    """The table with a header, without a line end behind the last row."""
    return table.write_csv().removesuffix("\n")


def check_new(path: Path | None) -> None:
    """Looks at what `--parquet` asks for, before the work.

    Raises:
        UsageError: The file exists.
    """
    if path is not None and path.exists():
        raise UsageError(f"--parquet {path} exists already")


def write_parquet(table: pl.DataFrame, path: Path) -> None:
    """Writes what `--parquet` asks for.

    Raises:
        UsageError: The file exists.
        OutputError: It cannot be written.
    """
    check_new(path)
    with told(path):
        write_whole(path, table.write_parquet)
